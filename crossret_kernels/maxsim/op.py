"""`maxsim_scores`: Sum-Max scores of images and captions; its schema and dispatch to backends."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from crossret_kernels.backends import select_backend
from crossret_kernels.checks import check_flag
from crossret_kernels.maxsim.chunked import maxsim_argmax_chunked, maxsim_scores_chunked
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.reference import maxsim_argmax_reference, maxsim_scores_reference
from crossret_kernels.ragged import Features, Lengths, as_ragged, check_together, most_rows
from crossret_kernels.registration import define_indices, define_scores
from crossret_kernels.selection import as_pairs, in_slices, shape_scores

_OPTIONS = "str direction, str pooling, bool normalize"
_INDEX_OPTIONS = "str direction, bool normalize"
_TRITON = "crossret_kernels.maxsim.triton"
_SCORES = {
    "cpu": define_scores("maxsim_scores", _OPTIONS),
    "triton": define_scores("maxsim_scores_triton", _OPTIONS, _TRITON),
}
_INDICES = {
    "cpu": define_indices("maxsim_argmax", _INDEX_OPTIONS),
    "triton": define_indices("maxsim_argmax_triton", _INDEX_OPTIONS, _TRITON),
}


@overload
def maxsim_scores(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    direction: str = "t2i",
    pooling: str = "sum",
    normalize: bool = False,
    pairs: Tensor | None = None,
    candidates: Tensor | None = None,
    return_argmax: Literal[False] = False,
    backend: str | None = None,
) -> Tensor: ...


@overload
def maxsim_scores(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    direction: str = "t2i",
    pooling: str = "sum",
    normalize: bool = False,
    pairs: Tensor | None = None,
    candidates: Tensor | None = None,
    return_argmax: Literal[True],
    backend: str | None = None,
) -> tuple[Tensor, Tensor]: ...


def maxsim_scores(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    direction: str = "t2i",
    pooling: str = "sum",
    normalize: bool = False,
    pairs: Tensor | None = None,
    candidates: Tensor | None = None,
    return_argmax: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sum-Max scores of images and captions: SCAN Eqs. 9 and 10; MaxSim of ColBERT and ColPali.

    Args:
        regions: region features of the images: padded (n_images, R, D); or packed ``(values (rows, D), cu_seqlens
            (n_images + 1,))``; or a list of (R_i, D) tensors. float32, bfloat16, float16 or float64. For late
            interaction: the tokens of the documents.
        words: word features of the captions, in any of the same three layouts; same D, dtype and device. For late
            interaction: the tokens of the queries.
        region_lengths: valid regions of each padded image, (n_images,) integers; None when all are. What lies behind
            them is never read.
        word_lengths: the same for captions.
        direction: "t2i": every word takes its best region (Eq. 9); "i2t": every region its best word (Eq. 10).
        pooling: of those maxima: "sum", "avg" or "max".
        normalize: whether to divide every region and word by its L2 norm first; zero vectors stay zero.
        pairs: (P, 2) integers (image, caption): only these pairs are scored.
        candidates: (n_queries, K) integers: each item of the maximising side (captions for t2i, images for i2t)
            against K items of the other side. Where a gradient is required, a list of all their pairs is kept for it,
            16 bytes each, as of `pairs` that are not int64; else "cpu" and "triton" never hold more than 2 MiB of it.
        return_argmax: whether to return which context each query takes too. It costs a second pass over the pairs.
        backend: "cpu", "triton", "cuda", "torch", "reference"; None takes the environment variable CROSSRET_BACKEND,
            else the fastest that serves the call.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. float32, float64 for
        float64 features. Differentiable in regions and words; of equal maxima the first gets the gradient.

        With `return_argmax` (scores, argmax): argmax (n_images, n_captions, Q), (P, Q) or (n_queries, K, Q), int64, is
        the place within its item of the region (t2i) or word (i2t) that each word (t2i) or region (i2t) takes: the
        first of equals, the first whose similarity is NaN where one is, and −1 where the item has no such query. Q is
        the padded width of the maximising side, or its longest item where that is packed or a list.

    Raises:
        ValueError: shapes, lengths, indices or options out of range; the message names the argument and the place.
        TypeError: features that are no floating-point tensors, lengths or indices that are no integers, mixed dtypes.
        UnsupportedByBackend: the named backend cannot serve the call.
    """
    options = MaxSimOptions(direction, pooling, normalize)
    check_flag("return_argmax", return_argmax)
    images = as_ragged(regions, region_lengths, name="regions", lengths_name="region_lengths", item="image")
    captions = as_ragged(words, word_lengths, name="words", lengths_name="word_lengths", item="caption")
    check_together(images, captions)
    chosen = select_backend(backend, images.values.device, images.values.dtype)
    selected = as_pairs(pairs, candidates, direction, len(images), len(captions), images.values.device)
    if chosen in _SCORES:
        scores = in_slices(_SCORES[chosen], images, captions, selected, (direction, pooling, normalize))
    else:
        score = maxsim_scores_chunked if chosen == "torch" else maxsim_scores_reference
        scores = score(images, captions, None if selected is None else selected.listed(), options)
    scores = shape_scores(scores, candidates)
    if not return_argmax:
        return scores
    width = most_rows(words if direction == "t2i" else regions)
    queries = captions if direction == "t2i" else images
    if chosen in _INDICES:
        argmax = in_slices(_INDICES[chosen], images, captions, selected, (direction, normalize, width), queries)
    else:
        if width is None:
            width = max(queries.lengths.tolist(), default=0)
        find = maxsim_argmax_chunked if chosen == "torch" else maxsim_argmax_reference
        argmax = find(images, captions, None if selected is None else selected.listed(), options, width)
    return scores, argmax if candidates is None else argmax.view(*candidates.shape, argmax.size(-1))
