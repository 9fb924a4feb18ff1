"""What torchrun says in the environment: a device a rank, and what is no torchrun's."""

from __future__ import annotations

import pytest
import torch

from crossret.distributed.torchrun import is_first, own_device, started_by_torchrun

RANKS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str | None]) -> None:
    """Of torchrun's variables these alone; None is one that is not there."""
    for name, value in {**dict.fromkeys([*RANKS, "LOCAL_RANK"]), **environment}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_ranks_take_a_device_each(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert own_device(torch.device("cuda:1")) == torch.device("cuda:1")  # without torchrun
    set_environment(monkeypatch, {**RANKS, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert own_device(cpu) == cpu
    assert own_device(cuda) == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device cuda:1: ranks on one machine take a CUDA device each"):
        own_device(torch.device("cuda:1"))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="rank 2 of this machine has no CUDA device, of which there are 2"):
        own_device(cuda)


WHOLE = "must be a whole number from"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"WORLD_SIZE": size}, f"WORLD_SIZE {WHOLE} 1 to 65536, not {size!r}") for size in ("two", "0", "1_0")),
        ({"LOCAL_RANK": "x"}, f"LOCAL_RANK {WHOLE} 0 to 1, not 'x'"),
        ({"MASTER_PORT": None}, f"MASTER_PORT {WHOLE} 1 to 65535, not unset"),
        ({"RANK": None}, "the environment has WORLD_SIZE='2', but no RANK: torchrun sets both"),
    ],
    ids=str,
)
def test_an_environment_that_is_no_torchrun_s_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], message: str
) -> None:
    set_environment(monkeypatch, {**RANKS, **changes})
    for ask in (started_by_torchrun, is_first, lambda: own_device(torch.device("cpu"))):
        with pytest.raises(ValueError) as raised:
            ask()
        assert message in str(raised.value)
