"""How often the host waits for a device: a pretended one, which computes on the CPU and counts what is read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from crossret_kernels import backends, maxsim_scores, scan_scores

DEVICE = torch.device("lazy", 0)  # one that every torch knows and none takes for a GPU
# How many there are of what they return is read.
SIZED_BY_VALUES = ("nonzero", "masked_select", "_unique2", "unique_consecutive", "repeat_interleave")


class Far(Tensor):
    """A tensor of the pretended device. `tolist` and `numpy` of a subclass are errors of torch."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        made: Far = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, near.size(), strides=near.stride(), dtype=near.dtype, device=DEVICE
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{operation} beyond the pretended device")


def near(x: Any) -> Any:
    return x.near if isinstance(x, Far) else torch.device("cpu") if x == DEVICE else x


class Waits(TorchDispatchMode):
    """Counts them, by what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Far)]
        name, device = operation.overloadpacket.__name__, kwargs.get("device")
        leaves = bool(flat) and device is not None and device != DEVICE
        by_mask = name == "index" and any(x.dtype is torch.bool for x in flat)
        if flat and (leaves or by_mask or name == "_local_scalar_dense" or name in SIZED_BY_VALUES):
            self.seen.append(name)
        if name == "_to_copy" and not flat and device == DEVICE and not kwargs.get("non_blocking"):
            self.seen.append("copy to the device")  # of which torch waits for the end, and so for what ran before
        if operation.namespace == "crossret":  # launches of kernels: they read what tells lengths
            self.seen += [name for x in flat if not x.dtype.is_floating_point]
            images, captions = (side[1] if side[1] is not None else side[0] for side in (args[:4], args[4:8]))
            sizes = [len(x) - (x.dim() == 1) for x in (images, captions)]
            made = [Far(torch.zeros(sizes)) for _ in operation._schema.returns]
            return made[0] if len(made) == 1 else tuple(made)
        made = operation(*tree_map(near, args), **tree_map(near, kwargs))
        stays = (bool(flat) or device == DEVICE) and not leaves
        return tree_map(lambda x: Far(x) if stays and isinstance(x, Tensor) else x, made)


LENGTHS = torch.tensor([3, 1]), torch.tensor([2, 4, 1])
VALUES = tuple(torch.randn(n, rows, 8, generator=torch.Generator().manual_seed(n)) for n, rows in ((2, 3), (3, 4)))
MASKS = tuple(torch.arange(x.size(1)) < own[:, None] for x, own in zip(VALUES, LENGTHS, strict=True))


def arguments(layout: str, far: Callable[[Tensor], Any]) -> tuple[list[Any], dict[str, Any]]:
    if layout == "cu_seqlens":
        offsets = [torch.cat((torch.zeros(1, dtype=torch.int64), own.cumsum(0))) for own in LENGTHS]
        packed = [x[mask] for x, mask in zip(VALUES, MASKS, strict=True)]
        return [(far(x), far(own)) for x, own in zip(packed, offsets, strict=True)], {}
    names = [f"{side}_{layout}" for side in ("region", "word")]
    given = LENGTHS if layout == "lengths" else MASKS
    return [far(x) for x in VALUES], {name: far(x) for name, x in zip(names, given, strict=True)}


@pytest.mark.parametrize("layout", ["lengths", "mask", "cu_seqlens"])
@pytest.mark.parametrize(
    ("function", "backend"),
    [(function, backend) for function in (scan_scores, maxsim_scores) for backend in ("torch", "triton")]
    + [(scan_scores, "cuda")],
)
def test_one_wait_tells_the_lengths_of_both_sides(
    function: Callable[..., Tensor], backend: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "unsupported_reason", lambda *_: None)
    monkeypatch.setattr(torch, "lazy", None, raising=False)  # the device's module, which recomputing looks up
    sides, given = arguments(layout, Far)
    waits = Waits()
    with torch.no_grad(), waits:
        scores = function(*sides, **given, backend=backend)
    assert waits.seen == ["_to_copy"]  # to the host
    if backend == "torch":
        sides, given = arguments(layout, torch.clone)
        torch.testing.assert_close(near(scores), function(*sides, **given, backend=backend), rtol=0, atol=0)
