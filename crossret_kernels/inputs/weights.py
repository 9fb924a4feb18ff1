"""Weights of rows: what each row's part of a score is multiplied by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, as_tensor


def weighted(side: Ragged, weights: Array | Sequence[Array], name: str) -> Ragged:
    """The side with every row times its weight, in the features' dtype; differentiable in both.

    Args:
        weights: laid out as the rows: (n, L) of padded ones, (rows,) of packed ones, a list of (L_k,) of a list.
        name: for errors.

    Raises TypeError or ValueError naming the argument where weights are no floating-point numbers of that shape on the
    features' device.
    """
    side = side.joined()
    parts = [as_tensor(x, name) for x in (weights if isinstance(weights, (list, tuple)) else [weights])]
    for part in parts:
        if not isinstance(part, Tensor) or not part.is_floating_point():
            kind = part.dtype if isinstance(part, Tensor) else type(part).__name__
            raise TypeError(f"{name} must be floating-point numbers, a tensor or an array, not {kind}")
    given = torch.cat(parts) if len(parts) > 1 else parts[0]
    expected = side.values.shape[:-1]
    if given.shape != expected:
        raise ValueError(f"{name} must have shape {tuple(expected)}, one for each row, got {tuple(given.shape)}")
    if given.device != side.values.device:
        raise ValueError(f"{name} are on {given.device} but the features on {side.values.device}")
    return side.with_values((side.values * given.unsqueeze(-1)).to(side.values.dtype))
