"""--device: what it may be, and that a model goes there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crossret.cli import options
from crossret.cli.options import load_trained, use_device


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As many CUDA devices as the test says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)


@pytest.mark.parametrize(
    ("devices", "name", "device"),
    [
        (0, None, "cpu"),
        (2, None, "cuda"),
        (2, "cpu", "cpu"),
        (2, "cuda:1", "cuda:1"),
    ],
    indirect=["devices"],
)
def test_devices_that_are_there(devices: None, name: str | None, device: str) -> None:
    assert use_device(name) == torch.device(device)


@pytest.mark.parametrize(
    ("devices", "name", "message"),
    [
        (0, "cuda", "--device cuda: there is no CUDA device"),
        (0, "cuda:0", "--device cuda:0: there is no CUDA device"),
        (2, "cuda:2", "--device cuda:2: of CUDA devices there are 2, numbered from 0"),
        *(
            (2, name, "--device must be cpu, cuda or cuda:1")
            for name in ("", "gpu", "cpu:0", "cuda:", "cuda:-1", "mps", "cuda:1\n", "cuda:" + "9" * 99)
        ),
    ],
    indirect=["devices"],
)
def test_others_are_refused(devices: None, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use_device(name)


def test_a_loaded_model_is_on_the_device(data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_trained(trained, data, "test", "cpu")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    monkeypatch.setattr(options, "use_device", lambda name: torch.device({"cuda:1": "meta"}[name]))
    model, _ = load_trained(trained, data, "test", "cuda:1")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
