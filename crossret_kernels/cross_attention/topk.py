"""`scan_topk`: the best matches by scan_scores, without the matrix of all scores."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.cross_attention.op import scan_scores
from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.options import DIRECTIONS, checked, choose
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.topk.streamed import Progress, feature_topk


def scan_topk(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    k: int,
    query: str = "caption",
    options: ScanOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    factors: Array | None = None,
    backend: str | None = None,
    progress: Progress | None = None,
    **fields: Unpack[ScanFields],
) -> tuple[Tensor, Tensor]:
    """For every caption the images that match it best by stacked cross attention, or for every image the captions.

    The same, but for rounding, as the first k of a stable descending sort of `scan_scores`: to the last bit where the
    corpus and the queries are one block each, as a pair's score may round otherwise in another batch. The matrix is
    never built: each block of scores is merged into the best so far. Memory beyond the features is O(queries · k) and
    less than 200 MiB, whatever the corpus.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask: as `scan_scores` takes them. Padded and
            packed NumPy arrays may be larger than memory if they are memory-mapped. The corpus is read once, from
            front to back; queries once for each block of it. Arrays go block by block to the other side's device.
        k: how many to retrieve, at least 1; the whole corpus where it has fewer.
        query: "caption": every caption retrieves images; "image": every image retrieves captions.
        options, **fields, empty_score, factors, backend: as in `scan_scores`. A corpus that is asked again and again
            had better keep its factors.
        progress: called with (items of the corpus scored so far, all of them) after each block of the corpus; what it
            raises ends the search.

    Returns:
        (values, indices), both (n_queries, min(k, n_corpus)), best first: scores as `scan_scores` returns them, without
        gradient, and int64 places in the corpus. Of equal scores the lower index comes first; NaN comes before all
        numbers, as torch.sort has it.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`, and where k, query or progress is none. All
            lengths are checked before anything is scored.
    """
    options = checked(ScanOptions, options, fields)
    if factors is not None:
        choose("direction beside factors", options.direction, DIRECTIONS)
    score = partial(scan_scores, options=options, empty_score=empty_score, backend=backend)
    return feature_topk(
        score, regions, words, region_lengths, word_lengths, k=k, query=query, progress=progress,
        region_mask=region_mask, word_mask=word_mask, empty=empty_score is not None,
        factors=(factors, None) if options.direction == "t2i" else (None, factors),
    )  # fmt: skip
