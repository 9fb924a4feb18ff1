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
    does not depend on its batch (backend "cpu"; others differ by rounding). The matrix is never built: each block of
    scores is merged into the best so far. Memory beyond the features is O(queries · k) and less than 200 MiB, whatever
    the corpus.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask: as `maxsim_scores` takes them. Padded and
            packed NumPy arrays may be larger than memory if they are memory-mapped. The corpus is read once, from
            front to back; queries once for each block of it. Arrays go block by block to the other side's device.
            For late interaction, regions are the documents' tokens and words the queries', and captions retrieve.
        k: how many to retrieve, at least 1; the whole corpus where it has fewer.
        query: "caption": every caption retrieves images; "image": every image retrieves captions.
        options, **fields, empty_score, backend: as in `maxsim_scores`.
        progress: called with (items of the corpus scored so far, all of them) after each block of the corpus; what it
            raises ends the search.

    Returns:
        (values, indices), both (n_queries, min(k, n_corpus)), best first: scores as `maxsim_scores` returns them,
        without gradient, and int64 places in the corpus. Of equal scores the lower index comes first; NaN comes before
        all numbers, as torch.sort has it.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim_scores`, and where k, query or progress is none. All
            lengths are checked before anything is scored.
    """
    options = checked(MaxSimOptions, options, fields)
    score = partial(maxsim_scores, options=options, empty_score=empty_score, backend=backend)
    return feature_topk(
        score, regions, words, region_lengths, word_lengths, k=k, query=query, progress=progress,
        region_mask=region_mask, word_mask=word_mask, empty=empty_score is not None,
    )  # fmt: skip
