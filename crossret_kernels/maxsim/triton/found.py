"""Maxima and their places, as search kernels of Sum-Max in Triton store them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from crossret_kernels.maxsim.triton.call import MaxSimCall


class Found(NamedTuple):
    """Tensors that kernels store maxima and places in; one that is not wanted may be any tensor.

    Attributes:
        scores: of pairs.
        indices: the best context of every query, of any integer dtype; −1 in an item without rows.
        maxima: their similarities in the same places, float32.
        weights: what of a score's gradient they get, in the same places, float32.
    """

    scores: Tensor
    indices: Tensor
    maxima: Tensor
    weights: Tensor


class SoftFound(NamedTuple):
    """`Found` of soft maxima.

    Attributes:
        scores, maxima: as of `Found`.
        indices: the greatest similarity of every query, clipped, float32.
        weights: 1 / Σ exp((s − greatest) / τ), times what of a score's gradient the maximum gets once that is known.
        slope, temperature: of the clip of similarities, and τ.
    """

    scores: Tensor
    indices: Tensor
    maxima: Tensor
    weights: Tensor
    slope: float
    temperature: float


class Strides(NamedTuple):
    """Strides of scores and of best contexts, by items of contexts or listed pairs and by items of queries.

    Where the last is 0, the plan's `starts` tell.
    """

    score_context: int
    score_query: int
    index_context: int
    index_query: int


def soft_found(call: MaxSimCall, results: Found) -> SoftFound:
    """The results, and the numbers that soft maxima are made with."""
    return SoftFound(*results, call.options.clip_slope, call.options.temperature)
