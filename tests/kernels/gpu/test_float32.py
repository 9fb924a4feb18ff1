"""float32 features on a GPU: "cuda" multiplies them in TF32 alone, and where that is not allowed others serve them."""

from __future__ import annotations

import pytest
import torch

from crossret_kernels import UnsupportedByBackend, backends
from crossret_kernels.backends import select_backend
from tests.kernels.precision import tfloat32


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU that both backends have kernels for, as far as is asked ahead of a launch."""
    monkeypatch.delenv("CROSSRET_BACKEND", raising=False)
    monkeypatch.setattr(backends, "CUDA_MISSING", None)
    monkeypatch.setattr(backends, "CUDA_ARCHITECTURES", "9.0a")
    monkeypatch.setattr(backends, "TRITON_MISSING", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return torch.device("cuda", 0)


@pytest.mark.parametrize("allowed", [False, True])
def test_cuda_takes_them_where_tf32_is_allowed(
    hopper: torch.device, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else "triton" serves such features, whatever is faster or preferred."""

    def chosen(named: str | None = None, dtype: torch.dtype = torch.float32) -> str:
        with tfloat32(allowed):
            return select_backend(named, hopper, dtype, first=("cuda", "triton"))

    expected = "cuda" if allowed else "triton"
    assert chosen() == expected
    assert (chosen(dtype=torch.bfloat16), chosen(dtype=torch.float16)) == ("cuda", "cuda")
    with tfloat32(allowed):
        assert backends.serving(hopper, torch.float32) == ("triton or cuda" if allowed else "triton")
    if allowed:
        assert chosen("cuda") == "cuda"
    else:
        with pytest.raises(UnsupportedByBackend) as refused:
            chosen("cuda")
        assert str(refused.value) == f"backend 'cuda' cannot serve this call: {backends.NOT_IN_TF32}"
    with pytest.raises(UnsupportedByBackend, match=r"its kernels do not make this; those of 'triton' do"):
        select_backend("cuda", hopper, torch.float32, served_by=("triton",))
    monkeypatch.setenv("CROSSRET_BACKEND", "cuda")
    assert chosen() == expected
    monkeypatch.setattr(backends, "TRITON_MISSING", "Triton is not installed (pip install triton)")
    assert chosen() == ("cuda" if allowed else "torch")


def test_what_autocast_casts_is_not_multiplied_as_float32(
    hopper: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "autocasts", lambda device_type: device_type == "cuda")
    with tfloat32(False):
        assert select_backend("cuda", hopper, torch.float32) == "cuda"
