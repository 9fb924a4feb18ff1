"""Square roots and norms of any finite size whose gradient at zero is zero, and the pooling of scores, shared by the
PyTorch backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

POOLINGS = ("lse", "avg", "sum", "max", "softmax")


class _Range(NamedTuple):
    """Vectors of lengths above `high` are multiplied by `down`, those below `low` by `up`, all powers of two: that
    rounds nothing, and no square then overflows, nor is one lost that counts.

    The product of two ups and of EPS is finite, and so is the sum of 2²⁸ squares.
    """

    high: float
    down: float
    low: float
    up: float


_SINGLE = _Range(2.0**50, 2.0**-78, 2.0**-50, 2.0**75)
_RANGES = {
    torch.float32: _SINGLE,
    torch.bfloat16: _SINGLE,
    torch.float64: _Range(2.0**450, 2.0**-574, 2.0**-450, 2.0**524),
    torch.float16: _Range(torch.inf, 1.0, 0.0, 1.0),  # too narrow to; only "reference" computes in it
}
# λ of log-sum-exp pooling below which it is the mean but for a constant and above which it is the maximum, to float64's
# rounding: its inverse would leave float32's range on the way, in the gradient too.
_LEAST_LAMBDA, _LARGEST_LAMBDA = 2.0**-64, 2.0**100


def has_float64(device: torch.device) -> bool:
    """Whether tensors of the device can be float64."""
    return device.type != "mps"


def power_of_two(lengths: Tensor) -> Tensor:
    """Factors for vectors of these lengths, so that their squares can be summed.

    1 for all of ordinary size, whose bits stay. A constant to autograd. Lengths may have overflowed or vanished.
    """
    high, down, low, up = _RANGES[lengths.dtype]
    lengths = lengths.detach()
    return torch.ones_like(lengths).masked_fill(lengths > high, down).masked_fill(lengths < low, up)


def scaled(vectors: Tensor, dim: int | tuple[int, ...] = -1) -> tuple[Tensor, Tensor]:
    """The vectors along `dim`, each times its power of two, and those powers, which keep `dim` as 1."""
    # Their lengths tell whether squares overflow or vanish; PyTorch takes far longer to find a largest magnitude.
    scale = power_of_two(vectors.detach().square().sum(dim, keepdim=True).sqrt())
    return vectors * scale, scale


def vector_length(vectors: Tensor) -> Tensor:
    """‖x‖₂ along the last dimension, with gradient 0 at x = 0."""
    scale = power_of_two(norm(vectors.detach()))
    return norm(vectors * scale[..., None]) / scale


def norm(vectors: Tensor) -> Tensor:
    """‖x‖₂ along the last dimension."""
    # Not by dim=-1 alone: PyTorch 2.10's torch.compile then takes a dimension of one number for one that stays.
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).squeeze(-1)


def safe_sqrt(squares: Tensor) -> Tensor:
    """√x with gradient 0 at x = 0, where PyTorch's is infinite; NaN stays NaN."""
    positive = squares != 0
    return torch.where(positive, squares.where(positive, 1).sqrt(), squares)


def safe_normalize(features: Tensor) -> Tensor:
    """Unit rows x / ‖x‖ (SCAN Eq. 1); a zero row stays zero and gets no gradient."""
    features, _ = scaled(features)
    return safe_divide(features, safe_sqrt(features.square().sum(-1, keepdim=True)))


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """x / y, zero with zero gradient where y = 0."""
    valid = denominator != 0
    return torch.where(valid, numerator, 0) / denominator.where(valid, 1)


def mean(results: Sequence[Any]) -> Any:
    """The mean of scores; of one result, itself."""
    if len(results) == 1:
        return results[0]
    first, *others = (result / len(results) for result in results)
    return sum(others, start=first)


def pool(values: Tensor, mask: Tensor, pooling: str, lambda_lse: float, top: int = 0) -> Tensor:
    """Pools values (…, Q) over the valid Q: SCAN Eqs. 5–8, the sum and maximum of its ablations, the mean by weights
    softmax(λ x), and the sum of the `top` largest.
    """
    if pooling == "lse":
        if lambda_lse > _LARGEST_LAMBDA:
            return values.masked_fill(~mask, -torch.inf).amax(-1)  # ties share its gradient
        if lambda_lse < _LEAST_LAMBDA:
            return pool(values, mask, "avg", 1.0) + mask.sum(-1).to(values.dtype).log() / lambda_lse
        largest = values.detach().masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
        logits = (lambda_lse * (values - largest)).masked_fill(~mask, -torch.inf)
        return largest.squeeze(-1) + torch.logsumexp(logits, -1) / lambda_lse
    if pooling == "softmax":
        largest = values.detach().masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
        differences = values - largest
        weights = torch.softmax((lambda_lse * differences).masked_fill(~mask, -torch.inf), -1)
        return largest.squeeze(-1) + (weights * differences).masked_fill(~mask, 0).sum(-1)
    if pooling == "max":
        return values.masked_fill(~mask, -torch.inf).max(-1).values
    if pooling == "topk":
        mask = of_the_largest(values, mask, top)
    total = values.masked_fill(~mask, 0).sum(-1)
    return total / mask.sum(-1) if pooling == "avg" else total


def of_the_largest(values: Tensor, mask: Tensor, top: int) -> Tensor:
    """Which of the valid values (…, Q) are the `top` largest, of equals the first; all where there are fewer."""
    order = values.masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return mask & (order.argsort(dim=-1) < top)


def pooled_shares(
    scores: Tensor, values: Tensor, mask: Tensor, pooling: str, lambda_lse: float, top: int = 0
) -> Tensor:
    """Shares (…, Q) of scores (…) that `pool` made of values (…, Q), float64, zero outside the mask (…, Q), as
    `scan_contributions` documents them; of "topk" those of the sum of the `top` largest.

    Of float32 scores the sum in float64 rounds to the score bit for bit, as long as the values do not cancel to less
    than some hundred-millionth of the largest; of float64 ones to float64's rounding.
    """
    if pooling == "topk":
        mask = of_the_largest(values, mask, top)
    totals, values = scores.double()[..., None], values.double()
    valid = values.masked_fill(~mask, -torch.inf)
    if pooling == "max":
        shares = torch.zeros_like(values).scatter(-1, valid.argmax(-1, keepdim=True), totals)
    elif pooling == "lse":
        shares = torch.softmax(lambda_lse * (valid - valid.amax(-1, keepdim=True)), -1) * totals
    else:
        counts = mask.sum(-1, keepdim=True)
        weights = 1 / counts if pooling == "avg" else torch.ones_like(counts)
        if pooling == "softmax":
            weights = torch.softmax(lambda_lse * (valid - valid.amax(-1, keepdim=True)), -1)
        shares = (weights * values).masked_fill(~mask, 0)
        shares = shares + (totals - shares.sum(-1, keepdim=True)) / counts
    return shares.masked_fill(~mask, 0)
