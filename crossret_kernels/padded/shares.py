"""What each of several pooled values brings to their score, in shares that add up to it."""

from __future__ import annotations

import torch
from torch import Tensor


def pooled_shares(scores: Tensor, values: Tensor, mask: Tensor, pooling: str, lambda_lse: float) -> Tensor:
    """Shares (…, Q) of scores (…) that `pool` made of values (…, Q), float64, zero outside the mask (…, Q).

    "sum": the value itself; "avg" and "softmax": the part of it that counts, by its weight. What the scores' own
    arithmetic rounded differently is nobody's in particular: all carry it alike. "max": all of the score is the
    largest value's, of equals the first's, as its gradient is.

    "lse", S = log(Σ exp(λ R_i)) / λ: p_i S, where p_i = exp(λ R_i) / Σ exp(λ R_j) is ∂S/∂R_i. As
    S = Σ p_i R_i + Σ p_i (−log p_i) / λ, the weighted relevances and the entropy of the weights, and R_i − log p_i / λ
    is S for every i, that is what the terms of i add up to. It tends to the shares of "max" as λ grows.

    Of float32 scores the sum in float64 rounds to the score bit for bit, as long as the values do not cancel to less
    than some hundred-millionth of the largest; of float64 ones to float64's rounding.
    """
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
