"""NumPy arrays wherever tensors go: shared, not copied; what a tensor cannot share is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import attention_pool, gated_attention_scores, heterogeneous_scores, maxsim_scores, scan_scores
from crossret_kernels.inputs.arrays import as_tensor
from tests.kernels.test_masks import CONTEXTS, LAYERS, PARAMETERS

RANDOM = np.random.default_rng(0)
REGIONS = RANDOM.standard_normal((3, 5, 8), np.float32)
WORDS = RANDOM.standard_normal((4, 6, 8), np.float32)
LENGTHS = (np.array([5, 1, 4]), np.array([6, 3, 1, 2], np.uint16))
PAIRS = np.array([[2, 1], [0, 0], [2, 3]])
CANDIDATES = np.array([[2, 1], [0, 0], [2, 2], [1, 0]], np.int32)

functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])


def items(side: int) -> list[np.ndarray]:
    return [item[:length] for item, length in zip((REGIONS, WORDS)[side], LENGTHS[side], strict=True)]


def packed(side: int) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(items(side)), np.array([0, *LENGTHS[side].cumsum(dtype=np.int64)])


def masks() -> dict[str, np.ndarray]:
    return {
        f"{row}_mask": np.arange(side.shape[1]) < lengths[:, None]
        for row, side, lengths in zip(("region", "word"), (REGIONS, WORDS), LENGTHS, strict=True)
    }


def as_tensors(value: Any) -> Any:
    """The same call with tensors of their own memory."""
    if isinstance(value, np.ndarray):
        return torch.tensor(value.astype(np.int64) if value.dtype == np.uint16 else value)
    if isinstance(value, (list, tuple)):
        return type(value)(as_tensors(item) for item in value)
    return {key: as_tensors(item) for key, item in value.items()} if isinstance(value, dict) else value


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "padded": ((REGIONS, WORDS, *LENGTHS), {}),
    "packed": ((packed(0), packed(1)), {}),
    "list": ((items(0), tuple(items(1))), {}),
    "list of one": (([REGIONS[0]], WORDS), {}),
    "masked": ((REGIONS, WORDS), masks()),
    "pairs": ((REGIONS, WORDS), {"pairs": PAIRS}),
    "candidates": ((REGIONS, WORDS), {"candidates": CANDIDATES}),
    "a tensor among them": ((torch.from_numpy(REGIONS), items(1)), {}),
    "half": ((REGIONS.astype(np.float16), WORDS.astype(np.float16)), {}),
    "double": ((REGIONS.astype(np.float64), WORDS.astype(np.float64)), {}),
    "strided": ((REGIONS.transpose(0, 2, 1).copy().transpose(0, 2, 1), WORDS[:, ::2]), {}),
}


@functions
@pytest.mark.parametrize(("arguments", "options"), CALLS.values(), ids=CALLS)
def test_arrays_score_as_tensors(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    ours = function(*arguments, **options)
    assert torch.equal(ours, function(*as_tensors(arguments), **as_tensors(options)))


@functions
def test_read_only_arrays_are_taken_without_a_warning(function: Callable[..., Tensor], tmp_path: Path) -> None:
    np.save(tmp_path / "regions.npy", REGIONS)
    mapped = np.load(tmp_path / "regions.npy", mmap_mode="r")
    pairs, words = PAIRS.copy(), WORDS.copy()
    for array in (pairs, words):
        array.flags.writeable = False
    assert torch.equal(function(mapped, words, pairs=pairs), function(REGIONS, WORDS, pairs=PAIRS))


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.bool_, np.int64, np.int32, np.uint8])
def test_nothing_is_copied(dtype: type[np.generic], writeable: bool) -> None:
    array = np.ones((3, 4), dtype)[:, ::2]
    array.flags.writeable = writeable
    shared = as_tensor(array, "x")
    assert shared.data_ptr() == array.ctypes.data and tuple(shared.shape) == array.shape
    address = shared.data_ptr()
    del array
    kept = [np.zeros((3, 4), dtype) for _ in range(50)]  # would take its place
    assert shared.data_ptr() == address and bool((shared == 1).all()) and len(kept) == 50


def test_the_other_operations_take_arrays() -> None:
    contexts = {"region_contexts": CONTEXTS[0].numpy(), "word_contexts": CONTEXTS[1].numpy()}
    calls: list[tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = [
        (gated_attention_scores, (REGIONS, WORDS, *LENGTHS), {**contexts, "parameters": PARAMETERS, "pairs": PAIRS}),
        (heterogeneous_scores, (items(0), items(1)), {"layers": LAYERS, "pairs": PAIRS}),
        (attention_pool, (REGIONS, REGIONS[..., :2], LENGTHS[0]), {}),
        (attention_pool, (REGIONS, REGIONS[..., :2]), {"mask": masks()["region_mask"]}),
        (attention_pool, (packed(0), packed(0)[0][:, :2]), {}),
        (attention_pool, (items(0), [item[:, :2] for item in items(0)]), {}),
    ]
    for function, arguments, options in calls:
        tensors = {
            key: value if key in ("parameters", "layers") else as_tensors(value) for key, value in options.items()
        }
        torch.testing.assert_close(function(*arguments, **options), function(*as_tensors(arguments), **tensors))


BACKWARDS, SWAPPED = REGIONS[:, ::-1], REGIONS.astype(REGIONS.dtype.newbyteorder())
FIELDS = np.zeros((3, 5, 8), np.dtype([("x", "<f4"), ("y", "u1")]))["x"]
UNALIGNED = np.zeros(REGIONS.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(REGIONS.shape)
MISTAKES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "objects": (REGIONS.astype(object), {}, TypeError, "regions must hold numbers that a tensor can, not object"),
    "complex": (REGIONS.astype(np.complex64), {}, TypeError, "regions must hold numbers that a tensor can"),
    "integers": (REGIONS.astype(np.int32), {}, TypeError, "regions must be float32, float64, bfloat16 or float16, not"),
    "byte order": (SWAPPED, {}, TypeError, "regions is >f4, not in this machine's byte order"),
    "backwards": (BACKWARDS, {}, ValueError, "which a tensor cannot have: pass a copy"),
    "fields": (FIELDS, {}, ValueError, "regions has strides (200, 40, 5), which a tensor cannot have: pass a copy"),
    "unaligned": (UNALIGNED, {}, ValueError, "which a tensor cannot have: pass a copy"),
    "a mask of its own": (np.ma.masked_array(REGIONS), {}, TypeError, "regions must be an array without a mask"),
    "flat": (REGIONS[0], {}, ValueError, "regions must have shape (n, L, D), got (5, 8)"),
    "item": ([REGIONS[0], SWAPPED[1]], {}, TypeError, "regions[1] is >f4"),
    "other item": ([REGIONS[0], REGIONS[1].astype(np.float64)], {}, TypeError, "regions[1] is torch.float64 but"),
    "first item": ([BACKWARDS[0], REGIONS[1]], {}, ValueError, "regions[0] has strides (-32, 4)"),
    "packed": ((BACKWARDS[0], np.array([0, 5])), {}, ValueError, "regions[0] has strides"),
    "offsets": ((REGIONS[0], np.array([0.0, 5])), {}, TypeError, "regions[1] (cu_seqlens) must be integers"),
    "offsets of objects": ((REGIONS[0], np.array([0, 5], object)), {}, TypeError, "regions[1] (cu_seqlens) must hold"),
    "lengths": (REGIONS, {"region_lengths": LENGTHS[0][::-1]}, ValueError, "region_lengths has strides (-8,)"),
    "floating lengths": (REGIONS, {"region_lengths": LENGTHS[0] * 1.0}, TypeError, "region_lengths must be integers"),
    "pairs": (REGIONS, {"pairs": PAIRS.astype(object)}, TypeError, "pairs must hold numbers that a tensor can"),
    "candidates": (REGIONS, {"candidates": CANDIDATES[::-1]}, ValueError, "candidates has strides (-8, 4)"),
    "floating pairs": (REGIONS, {"pairs": PAIRS * 1.0}, TypeError, "pairs must be integers, not torch.float64"),
    "far pairs": (REGIONS, {"pairs": PAIRS + 1}, ValueError, "names image 3, but there are 3 images"),
    "large pairs": (REGIONS, {"pairs": np.array([[40000, 0]], np.uint16)}, ValueError, "names image 40000, but"),
    "mask": (REGIONS, {"region_mask": masks()["region_mask"][:, ::-1]}, ValueError, "region_mask has strides (5, -1)"),
}  # fmt: skip


@functions
@pytest.mark.parametrize(("regions", "options", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(
    function: Callable[..., Tensor], regions: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        function(regions, WORDS, **options)
