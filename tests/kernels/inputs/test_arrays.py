"""NumPy arrays wherever tensors go: shared, not copied; what a tensor cannot share is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from crossret_kernels.inputs.tensors import as_tensor
from tests.kernels.told import told

RANDOM = np.random.default_rng(0)
REGIONS = RANDOM.standard_normal((3, 5, 8), np.float32)
WORDS = RANDOM.standard_normal((4, 6, 8), np.float32)
LENGTHS = (np.array([5, 1, 4]), np.array([6, 3, 1, 2], np.uint16))
PAIRS = np.array([[2, 1], [0, 0], [2, 3]])
CANDIDATES = np.array([[2, 1], [0, 0], [2, 2], [1, 0]], np.int32)

functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])


def masks() -> dict[str, np.ndarray]:
    return {
        f"{row}_mask": np.arange(side.shape[1]) < lengths[:, None]
        for row, side, lengths in zip(("region", "word"), (REGIONS, WORDS), LENGTHS, strict=True)
    }


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


BACKWARDS, SWAPPED = REGIONS[:, ::-1], REGIONS.astype(REGIONS.dtype.newbyteorder())
UNALIGNED = np.zeros(REGIONS.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(REGIONS.shape)
MISTAKES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "objects": (REGIONS.astype(object), {}, TypeError, "regions must hold numbers that a tensor can, not object"),
    "integers": (REGIONS.astype(np.int32), {}, TypeError, "regions must be float32, float64, bfloat16 or float16, not"),
    "byte order": (SWAPPED, {}, TypeError, "regions is >f4, not in this machine's byte order"),
    "backwards": (BACKWARDS, {}, ValueError, "which a tensor cannot have: pass a copy"),
    "unaligned": (UNALIGNED, {}, ValueError, "which a tensor cannot have: pass a copy"),
    "a mask of its own": (np.ma.masked_array(REGIONS), {}, TypeError, "regions must be an array without a mask"),
    "item": ([REGIONS[0], SWAPPED[1]], {}, TypeError, "regions[1] is >f4"),
    "offsets": ((REGIONS[0], np.array([0.0, 5])), {}, TypeError, "regions[1] (cu_seqlens) must be integers"),
    "lengths": (REGIONS, {"region_lengths": LENGTHS[0][::-1]}, ValueError, "region_lengths has strides (-8,)"),
    "candidates": (REGIONS, {"candidates": CANDIDATES[::-1]}, ValueError, "candidates has strides (-8, 4)"),
    "large pairs": (REGIONS, {"pairs": np.array([[40000, 0]], np.uint16)}, ValueError, "names image 40000, but"),
    "mask": (REGIONS, {"region_mask": masks()["region_mask"][:, ::-1]}, ValueError, "region_mask has strides (5, -1)"),
}  # fmt: skip
test_mistakes_are_named = told(
    lambda function, regions, options: function(regions, WORDS, **options), MISTAKES, scan_scores, maxsim_scores
)
