"""`maxsim_argmax`: which context each query of Sum-Max takes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.pairs import ATTENDING, as_pairs, shape_scores
from crossret_kernels.inputs.sides import Features, Lengths, as_sides, most_rows
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.maxsim.op import ARGMAX, score_sides
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.two_sides import serve


class MaxSimArgmax(NamedTuple):
    """Scores and the contexts whose similarities they are made of.

    Attributes:
        scores: as `maxsim_scores` returns them, differentiable.
        indices: (n_images, n_captions, Q), (P, Q) of pairs or (n_queries, K, Q) of candidates, int64: the place within
            its item of the region (t2i) or word (i2t) that each word (t2i) or region (i2t) takes. Of equals the first,
            the first whose similarity is NaN where one is, and −1 where the item has no such query or the other item
            is empty. Q is the padded width of the maximising side, or its longest item where that is packed or a list.
    """

    scores: Tensor
    indices: Tensor


def maxsim_argmax(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    direction: str = "t2i",
    pooling: str = "sum",
    normalize: bool = False,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
) -> MaxSimArgmax:
    """`maxsim_scores`, and which context each query takes, by a second pass over the pairs.

    Arguments and errors are those of `maxsim_scores`. "cpu" joins lists for the second pass, a copy.
    """
    options = checked(MaxSimOptions, direction, pooling, normalize)
    images, captions = as_sides(regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    selected = as_pairs(pairs, candidates, query, ATTENDING[direction], images, captions)
    scores = shape_scores(score_sides(images, captions, selected, options, empty_score, backend), candidates)
    width = most_rows(words if direction == "t2i" else regions)
    queries = captions if direction == "t2i" else images
    indices = serve(
        ARGMAX, backend, images, captions, selected, options, empty_score,
        width=(width,), queries=queries, fill=-1, codes=options.codes[:-1],
    )  # fmt: skip
    return MaxSimArgmax(scores, indices if candidates is None else indices.view(*candidates.shape, indices.size(-1)))
