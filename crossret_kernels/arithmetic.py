"""Square roots and norms whose gradient at zero is zero, and the pooling of scores, shared by the PyTorch backends."""

from __future__ import annotations

import torch
from torch import Tensor

POOLINGS = ("lse", "avg", "sum", "max")


def safe_sqrt(squares: Tensor) -> Tensor:
    """√x with gradient 0 at x = 0, where PyTorch's is infinite; NaN stays NaN."""
    positive = squares != 0
    return torch.where(positive, squares.where(positive, 1).sqrt(), squares)


def safe_normalize(features: Tensor) -> Tensor:
    """Unit rows x / ‖x‖ (SCAN Eq. 1); a zero row stays zero and gets no gradient."""
    norm = safe_sqrt(features.square().sum(-1, keepdim=True))
    return safe_divide(features, norm)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """x / y, zero with zero gradient where y = 0."""
    valid = denominator != 0
    return torch.where(valid, numerator, 0) / denominator.where(valid, 1)


def pool(values: Tensor, mask: Tensor, pooling: str, lambda_lse: float) -> Tensor:
    """Pools values (…, Q) over the valid Q: SCAN Eqs. 5–8, and the sum and maximum of its ablations."""
    if pooling == "lse":
        return torch.logsumexp(lambda_lse * values.masked_fill(~mask, -torch.inf), -1) / lambda_lse
    if pooling == "max":
        return values.masked_fill(~mask, -torch.inf).max(-1).values
    total = values.masked_fill(~mask, 0).sum(-1)
    return total / mask.sum(-1) if pooling == "avg" else total
