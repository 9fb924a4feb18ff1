"""`scan_scores` and `scan_topk`: stacked cross attention of images and captions; schema and dispatch to backends."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.backends import select_backend
from crossret_kernels.cross_attention.factors import check_factors
from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.cross_attention.reference import scan_scores_reference
from crossret_kernels.cross_attention.torch import scan_scores_chunked
from crossret_kernels.inputs.call import Call, Features, Lengths, as_call
from crossret_kernels.inputs.options import DIRECTIONS, checked, choose
from crossret_kernels.inputs.tensors import Array, autocasts, checkable
from crossret_kernels.operations import Operand, define
from crossret_kernels.topk.streamed import Progress, feature_topk
from crossret_kernels.torch_internals import reduced_float32
from crossret_kernels.two_sides import LISTED_SIDES, OPTIONS, PLAIN_SIDES, SIDES, scores_like, serve

ATTENTION_OPTIONS = f"{OPTIONS}, {ScanOptions.schema}"


_SIGNATURE = SIDES, ATTENTION_OPTIONS, scores_like
_PAIR, _THREE = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"
_TRITON, _CUDA = (
    tuple(f"cross_attention.{backend}.{name}" for name in ("forward:scores", "backward:gradients"))
    for backend in ("triton", "cuda")
)
SCORES = {
    "cpu": define("scan_scores", *_SIGNATURE, autocast=True),
    "triton": define("scan_scores_triton", *_SIGNATURE, made=_PAIR, kernels=_TRITON, autocast=True, saves=True),
    "cuda": define("scan_scores_cuda", *_SIGNATURE, made=_THREE, kernels=_CUDA, autocast=True, saves=True),
    "torch": scan_scores_chunked,
    "reference": scan_scores_reference,
}
LISTED = define("scan_scores_listed", LISTED_SIDES, ATTENTION_OPTIONS, scores_like)
# The mean of both directions by the CPU from one product: options are those of the first, but one of the other's.
_BOTH_WAYS_OPTIONS = f"{ATTENTION_OPTIONS}, float turned_lambda_softmax"
BOTH_WAYS = define("scan_both", SIDES, _BOTH_WAYS_OPTIONS, scores_like, autocast=True)
LISTED_BOTH_WAYS = define("scan_both_listed", LISTED_SIDES, _BOTH_WAYS_OPTIONS, scores_like)
# Numbers that the factors of both sides may take, made ahead: 32 MiB, and 8 where gradients follow, of the 64 that a
# call may hold.
MOST_FACTORS = 2**23
FACTORED = define(
    "scan_scores_factored",
    (Operand("factors", "Tensor"), *PLAIN_SIDES),
    ATTENTION_OPTIONS,
    lambda _, *rest: scores_like(*rest),
)


def scan_scores(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    options: ScanOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    factors: Array | None = None,
    backend: str | None = None,
    **fields: Unpack[ScanFields],
) -> Tensor:
    """Stacked cross attention scores of images and captions (SCAN, Lee et al. 2018, Eqs. 1–8).

    Args:
        regions: region features of the images: padded (n_images, R, D); or packed ``(values (rows, D), cu_seqlens
            (n_images + 1,))``; or a list of (R_i, D) tensors; or a `Ragged` of any of these. float32,
            bfloat16, float16 or float64.
        words: word features of the captions, in any of the same layouts; same D, dtype and device.
        region_lengths: valid regions of each padded image, (n_images,) integers; None when all are. What lies behind
            them is never read.
        word_lengths: the same for captions.
        region_mask: in place of region_lengths, (n_images, R) bool on the features' device, True where a padded image
            has a region, anywhere: it scores as these regions packed. What lies elsewhere is never read.
        word_mask: the same for captions, (n_captions, W).
        empty_score: what a pair scores of which an item has no rows (length 0, a mask without True, equal offsets, a
            (0, D) tensor of a list), without a gradient to anything; may be infinite. None: an empty item is an error.
        options: how pairs are scored; None: the defaults of `ScanOptions`, which documents its fields.
        **fields: fields of `ScanOptions`, as ``direction="i2t"``, in place of those of `options`.
        pairs: (P, 2) integers (image, caption): only these pairs are scored.
        candidates: (n_queries, K) integers: each item of one side against K items of the other, as `scan_topk` finds
            them. Where a gradient is required, a list of all their pairs is kept for it, 16 bytes each, as of `pairs`
            that are not int64; else "cpu", "triton" and "cuda" never hold more than 2 MiB of it.
        query: whose candidates they are: "caption" or "image"; None: the attending side's (captions' for t2i, images'
            for i2t), of "both" captions'.
        factors: `scan_factors` of the attended side, its regions for "t2i", its words for "i2t", made of the same
            features with the same `normalize`: "cpu" then does without their Gram matrices, which other backends, and
            it under autocast, make all the same. Those of other features give wrong scores. Without gradients, and of
            one direction, alone.
        backend: "cpu", "triton", "cuda", "torch", "reference"; None takes what CROSSRET_BACKEND prefers
            where it serves the call, else the fastest that does.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. float32, float64 for
        float64 features. Differentiable in regions and words.

    Raises:
        ValueError: shapes, lengths, indices or options out of range; the message names the argument and the place.
        TypeError: features that are no floating-point tensors, lengths or indices that are no integers, mixed dtypes,
            arrays whose memory a tensor cannot share.
        UnsupportedByBackend: the named backend cannot serve the call.

    NumPy arrays serve wherever tensors do and are not copied: float16, float32 or float64 features, bool masks,
    integers.
    "cpu", "torch" and "reference" score lists where they lie; where a gradient is required of any feature, under
    autocast, torch.func or torch.compile "cpu" joins them first, a copy, and so do "triton" and "cuda" always.
    float32 features are multiplied in float32 unless ``torch.set_float32_matmul_precision``, or its successor
    ``torch.backends.mkldnn.matmul.fp32_precision``, allows less: "cpu" may then multiply them as three bfloat16
    products of split halves, where the processor has AMX. Of each similarity Σ a·b these lose no more than
    2⁻¹⁵ Σ |a||b|, besides the rounding of float32 sums, and λ times that
    reaches the weights; gradients have the precision that the scores had. ‖attended‖ is made in float32 all the same.
    "cuda" takes float32 features where ``torch.backends.cuda.matmul`` allows TF32, and multiplies them in it.

    A NaN feature makes its item's scores NaN and no others; to "triton" and "cuda" a row longer than 3.1e7 is no
    number either, unless it is to be normalised. Where a norm is exactly zero (zero vectors, a
    similarity row wholly clipped away) the quotient is zero and so is its gradient.
    """
    options = checked(ScanOptions, options, fields)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    call = as_call(sides, pairs, candidates, query, options.direction)
    if factors is not None:
        choose("direction beside factors", options.direction, DIRECTIONS)
        tensor = check_factors(factors, call.sides(options.direction)[1])
        if call.gradients:
            raise ValueError("factors serve scores without gradients, and the features require them")
        if not autocasts("cpu"):
            return call.as_scores(serve({**SCORES, "cpu": partial(FACTORED, tensor)}, backend, call, options))
    return call.as_scores(score_call(call, options, backend))


def score_call(call: Call, options: ScanOptions, backend: str | None) -> Tensor:
    """Scores of a checked call, (n_images, n_captions), or (P,) of selected pairs."""
    values = call.values
    on_cpu = options.direction == "both" and select_backend(backend, values.device, values.dtype) == "cpu"
    if not on_cpu or not one_product_serves(call):
        return serve(SCORES, backend, call, options, listed=LISTED)
    # The longer side's items are the contexts of the first direction: each pair has Gram gradients of the shorter one.
    first, second = options.ways if call.images.width >= call.captions.width else options.ways[::-1]
    arguments = call.empty_score, reduced_float32(False), *first.codes, second.inverse_temperature
    return call.run(BOTH_WAYS, arguments, listed=LISTED_BOTH_WAYS)


def one_product_serves(call: Call) -> bool:
    """Whether both directions had better share a product. The factors of both sides are then made ahead: of items that
    each meet as many rows as they have, for which two calls make them, too, and no more than can be held.
    """
    sides = call.images, call.captions
    if not checkable() and any(side.offsets is not None for side in sides):
        return False
    rows = [len(side) * side.width if side.offsets is None else int(side.offsets[-1]) for side in sides]
    share = 1 if call.pairs is None else len(call.pairs) / max(len(sides[0]) * len(sides[1]), 1)
    size = 0
    for n_rows, n_others, side in zip(rows, rows[::-1], sides, strict=True):
        if side.width > min(n_others * share, side.values.size(-1)):
            return False
        size += n_rows * (side.width + 15)  # rows of a factor are padded
    return size <= (MOST_FACTORS // 4 if call.gradients else MOST_FACTORS)


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

    Results are the first k of a stable descending sort of `scan_scores`, but for rounding: to the last bit where the
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
