"""`scan_factors`: factors of a corpus' Gram matrices, kept from one call to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.backends import select_backend
from crossret_kernels.inputs.call import Features, Lengths, as_ragged
from crossret_kernels.inputs.options import check_flag
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, SideNames, as_tensor
from crossret_kernels.operations import Operand, define

_SIDE = (Operand("features", "Tensor"), Operand("offsets"), Operand("lengths"), Operand("mask"))
_NAMES = SideNames("features", "lengths", "mask", "item")
_ROW = 16  # rows of a factor begin at multiples of so many floats


def _factors_like(features: Tensor, offsets: Tensor | None, *arguments: Any) -> Tensor:
    n, longest = features.size(0) if offsets is None else offsets.size(0) - 1, arguments[-1]
    return features.new_empty((n, longest, -(-longest // _ROW) * _ROW), dtype=torch.float32)


_FACTORS = define("scan_factors", _SIDE, "bool normalize, SymInt longest", _factors_like)


def scan_factors(
    features: Features, lengths: Lengths = None, *, mask: Array | None = None, normalize: bool = False
) -> Tensor:
    """Factors of the Gram matrices of items that are attended to, for `scan_scores` and `scan_topk` on the CPU, to be
    kept with a corpus.

    The upper triangular factor U of each item's Gram matrix, UᵀU = C Cᵀ: the length of an attended vector is ‖U p‖. For
    few queries making it costs as much as the scores; they take as long as reading the features where it is kept.

    Args:
        features: regions of images ("t2i") or words of captions ("i2t"), in any layout that `scan_scores` takes.
        lengths, mask: valid rows, as `scan_scores` takes them; items may be empty.
        normalize: whether rows are divided by their L2 norm first, as in the calls that take these factors.

    Returns:
        (n, L, L rounded up to 16) float32, one entry an item, so that the items of a slice have a slice of them; zeros
        where there are fewer rows than L, the padded width or the longest item's rows. No gradient goes through it.

    Raises:
        ValueError, TypeError: as `scan_scores`. UnsupportedByBackend: the features are not the CPU's.
    """
    check_flag("normalize", normalize)
    side = as_ragged(features, lengths, mask, _NAMES, empty=True).joined()
    select_backend("cpu", side.values.device, side.values.dtype)
    return _FACTORS(*side.tensors(), normalize, side.width)


def check_factors(factors: Array, attended: Ragged) -> Tensor:
    """Factors as a tensor. Raises TypeError or ValueError where they cannot be those of the attended side."""
    data = as_tensor(factors, "factors")
    if not isinstance(data, Tensor) or data.dtype != torch.float32:
        raise TypeError("factors must be a float32 tensor, as scan_factors makes it")
    n, longest = len(attended), int(attended.lengths.max()) if len(attended) else 0
    if data.dim() != 3 or data.size(0) != n or data.size(1) < longest or data.size(2) < data.size(1):
        raise ValueError(f"factors must be those of the {n} items attended to, of {longest} rows, not {(*data.shape,)}")
    return data.contiguous()
