"""`maxsim_topk`: the best matches by maxsim_scores, without the matrix of all scores."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.maxsim.op import maxsim_scores
from crossret_kernels.maxsim.options import MaxSimFields, MaxSimOptions
from crossret_kernels.topk.streamed import Progress, feature_topk


def maxsim_topk(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    k: int,
    query: str = "caption",
    options: MaxSimOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    backend: str | None = None,
    progress: Progress | None = None,
    **fields: Unpack[MaxSimFields],
) -> tuple[Tensor, Tensor]:
    """For every caption the images that match it best by Sum-Max, or for every image the captions.

    The same, to the last bit, as the first k of a stable descending sort of `maxsim_scores`, wherever a pair's score
    does not depend on its batch (backend "cpu"; others differ by rounding). Arguments are `maxsim_scores`', and all
    else is as in `scan_topk`: k, query, progress, arrays larger than memory, results, errors, memory. For late
    interaction, regions are the documents' tokens and words the queries', and captions retrieve.
    """
    options = checked(MaxSimOptions, options, fields)
    score = partial(maxsim_scores, options=options, empty_score=empty_score, backend=backend)
    return feature_topk(
        score, regions, words, region_lengths, word_lengths, k=k, query=query, progress=progress,
        region_mask=region_mask, word_mask=word_mask, empty=empty_score is not None,
    )  # fmt: skip
