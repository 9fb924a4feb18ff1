"""`attention_pool` and its weights: multi-head soft attention within items of any length; its checks and dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.attention_pool.reference import attention_pool_reference
from crossret_kernels.attention_pool.torch import attention_pool_chunked
from crossret_kernels.backends import select_in_torch
from crossret_kernels.inputs.call import Features, Lengths, as_ragged
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, SideNames, check_has_values, check_operand, is_packed
from crossret_kernels.operations import needs_gradient

_IN_TORCH = {"torch": attention_pool_chunked, "reference": attention_pool_reference}


class PooledAttention(NamedTuple):
    """Items pooled by each of r heads, and by what; both differentiable.

    Attributes:
        pooled: (n, r, D).
        weights: (n, r, L), which sum to 1 over L, the width of padded values, the longest item's length of packed and
            listed ones, and are zero behind the ends of items.
    """

    pooled: Tensor
    weights: Tensor


def attention_pool(
    values: Features,
    logits: Array | Sequence[Array],
    lengths: Lengths = None,
    *,
    mask: Array | None = None,
    backend: str | None = None,
) -> Tensor:
    """The rows of each item averaged by a softmax over them, once for each head.

    MHSAN Eqs. 1 and 2, OAN Eqs. 6–8, SMAN Eqs. 6, 7, 10 and 11 without the further 1/M. Heads share the values.

    Args:
        values: rows of n items: padded (n, L, D); or packed ``(values (rows, D), cu_seqlens (n + 1,))``; or a list of
            (L_i, D) tensors. float32, bfloat16, float16 or float64. Every item has at least one row.
        logits: of r heads for each row, laid out as the values: (n, L, r); (rows, r) of packed values; a list of
            (L_i, r). On the same device; float64 with float64 values, else of any narrower floating point.
        lengths, mask: valid rows of padded items, as `scan_scores` takes them.
        backend: "torch" or "reference"; None takes "torch", or what CROSSRET_BACKEND prefers of them.

    Returns:
        Pooled (n, r, D), computed in float32 and returned in it, in float64 for float64 values, under autocast too.
        Differentiable in values and logits. `attention_pool_weights` returns the weights too.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`, of logits, too; packed or listed values inside
            torch.compile.

    NumPy arrays serve as in `scan_scores`. NaN in an item makes its results NaN and no others.
    """
    return attention_pool_weights(values, logits, lengths, mask=mask, backend=backend).pooled


def attention_pool_weights(
    values: Features,
    logits: Array | Sequence[Array],
    lengths: Lengths = None,
    *,
    mask: Array | None = None,
    backend: str | None = None,
) -> PooledAttention:
    """`attention_pool`, whose arguments and errors it has, with the weights."""
    items = as_ragged(values, lengths, mask, SideNames("values", "lengths", "mask", "item"))
    check_has_values(items.values, "values")
    heads = _as_logits(logits, values, items)
    backend_name = select_in_torch(backend, "pooling is made", "attention_pool takes padded values", items)
    if heads.items is None:  # a gradient goes through the logits
        items = items.joined()
    with torch.autocast(items.values.device.type, enabled=False):
        return PooledAttention(*_IN_TORCH[backend_name](items, heads))


def _as_logits(logits: Any, values: Any, items: Ragged) -> Ragged:
    """The logits in the layout of the values."""
    if isinstance(values, Ragged):
        values = values.as_given()[0]
    if isinstance(values, (Tensor, np.ndarray)) or is_packed(values):
        form = "(n, L, r)" if items.offsets is None else "(rows, r)"
        return items.with_values(_check_logits("logits", logits, items.values, form, items.values.shape[:-1]))
    if not isinstance(logits, Sequence):
        raise TypeError(f"logits must be a list of (L, r) tensors as the values are, not {type(logits).__name__}")
    if len(logits) != len(values):
        raise ValueError(f"logits must hold a tensor for each of {len(values)} items, got {len(logits)}")
    tensors: list[Tensor] = []
    for index, (item, value) in enumerate(zip(logits, values, strict=True)):
        name = f"logits[{index}]"
        tensors.append(_check_logits(name, item, items.values, "(L, r)", value.shape[:-1]))
        if tensors[-1].size(1) != tensors[0].size(1):
            raise ValueError(f"{name} has r = {tensors[-1].size(1)} but logits[0] has r = {tensors[0].size(1)}")
    if items.offsets is None:
        return items.with_values(tensors[0].unsqueeze(0))
    ragged = Ragged.trusted(tensors[0][:0], items.offsets, items=tensors)
    return ragged if items.items is not None and not needs_gradient(tensors) else ragged.joined()


def _check_logits(name: str, logits: Any, values: Tensor, form: str, rows: Sequence[int]) -> Tensor:
    heads = logits.shape[-1] if isinstance(logits, (Tensor, np.ndarray)) and logits.ndim else 1
    tensor = check_operand(name, logits, values, "values", form, (*rows, heads))
    if heads == 0:
        raise ValueError(f"{name} has r = 0 (shape {tuple(tensor.shape)}): there is at least one head")
    return tensor
