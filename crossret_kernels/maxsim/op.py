"""`maxsim_scores`, `maxsim_topk` and `maxsim_argmax`: Sum-Max of images and captions; schemas, dispatch to backends."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.backends import select_backend
from crossret_kernels.inputs.call import Call, Features, Lengths, as_call
from crossret_kernels.inputs.options import DIRECTIONS, checked, choose
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.maxsim.options import BOTH, MaxSimFields, MaxSimOptions
from crossret_kernels.maxsim.reference import maxsim_argmax_reference, maxsim_scores_reference
from crossret_kernels.maxsim.torch import maxsim_argmax_chunked, maxsim_both_chunked, maxsim_scores_chunked
from crossret_kernels.maxsim.weights import Weights, weighted
from crossret_kernels.operations import define
from crossret_kernels.topk.streamed import Progress, feature_topk
from crossret_kernels.torch_internals import reduced_float32, transformed
from crossret_kernels.two_sides import (
    LISTED_SIDES,
    OPTIONS,
    PLAIN_SIDES,
    SIDES,
    indices_like,
    scores_like,
    serve,
    several_like,
)

WEIGHTS = "region_weights", "word_weights"
MAXSIM_OPTIONS = f"{OPTIONS}, {MaxSimOptions.schema}"


_TRITON = "maxsim.triton.searches:scores", "maxsim.triton.gradients:gradients"
SCORES = {
    # Saved is which context every query takes.
    "cpu": define(
        "maxsim_scores", SIDES, MAXSIM_OPTIONS, scores_like, made="(Tensor, Tensor)", autocast=True, saves=True
    ),
    "triton": define("maxsim_scores_triton", SIDES, MAXSIM_OPTIONS, scores_like, kernels=_TRITON, autocast=True),
    "torch": maxsim_scores_chunked,
    "reference": maxsim_scores_reference,
}
LISTED = define("maxsim_scores_listed", LISTED_SIDES, MAXSIM_OPTIONS, scores_like)
# Both directions of one product: other backends take one for each.
_TWO, _BOTH = "(Tensor, Tensor)", (MAXSIM_OPTIONS, several_like(scores_like, scores_like))
BOTH_WAYS = {
    "cpu": define("maxsim_both", SIDES, *_BOTH, results=2, autocast=True, made=_TWO),
    "torch": maxsim_both_chunked,
}
LISTED_BOTH_WAYS = define("maxsim_both_listed", LISTED_SIDES, *_BOTH, made=_TWO)
# Similarities of a pair at most: every thread of "cpu" holds a group's with a block. Of longer items either direction
# is found part by part.
MOST_CELLS = 2**21
_ARGMAX_OPTIONS = f"{MAXSIM_OPTIONS}, SymInt? width"
# The CPU's finds scores by the way.
_SCORES_AND_INDICES = several_like(scores_like, indices_like)
SCORES_AND_ARGMAX = define("maxsim_argmax", PLAIN_SIDES, _ARGMAX_OPTIONS, _SCORES_AND_INDICES, made=_TWO, autocast=True)
ARGMAX = {
    "cpu": lambda *arguments: SCORES_AND_ARGMAX(*arguments)[1],
    "triton": define(
        "maxsim_argmax_triton", PLAIN_SIDES, _ARGMAX_OPTIONS, indices_like,
        kernels=("maxsim.triton.searches:indices",), autocast=True,
    ),
    "torch": maxsim_argmax_chunked,
    "reference": maxsim_argmax_reference,
}  # fmt: skip


def maxsim_scores(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    options: MaxSimOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    region_weights: Weights = None,
    word_weights: Weights = None,
    backend: str | None = None,
    **fields: Unpack[MaxSimFields],
) -> Tensor:
    """Sum-Max scores of images and captions: SCAN Eqs. 9 and 10; MaxSim of ColBERT and ColPali; the alignment of LAPS,
    AVSE and SEPS is ``direction="both", pooling="avg", clip_slope=0.1``, CHAN's ``pooling="lse"``.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score: as `scan_scores` takes them.
            For late interaction, regions are the tokens of the documents and words those of the queries.
        options: how pairs are scored; None: the defaults of `MaxSimOptions`, which documents its fields.
        **fields: fields of `MaxSimOptions`, as ``direction="i2t"``, in place of those of `options`.
        pairs, candidates: as `scan_scores` takes them; `maxsim_topk` finds candidates.
        query: whose candidates they are: "caption" or "image"; None: the maximising side's (captions' for t2i and
            both, images' for i2t).
        region_weights, word_weights: at least 0, what each row's maximum counts for (weighted late interaction, DRL):
            (n, L) of padded features, (rows,) of packed ones, a list of (L_k,) of lists; of the side that maximises, of
            either with "both". Differentiable. The row is multiplied by it, in the features' dtype, which multiplies
            all its similarities: a weight of 0 makes them equal.
        backend: "cpu", "triton", "torch", "reference"; None takes what CROSSRET_BACKEND prefers where it serves the
            call, else the fastest that does; "cuda" has no kernels of it.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. float32, float64 for
        float64 features. Differentiable in regions and words; of equal maxima the first gets the gradient.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`.

    NumPy arrays, lists, copies of them and the precision of products are `scan_scores`' too.
    """
    options = checked(MaxSimOptions, options, fields)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    call = as_call(sides, pairs, candidates, query, options.direction)
    return call.as_scores(weighted_scores(call, options, backend, region_weights, word_weights))


def weighted_scores(
    call: Call, options: MaxSimOptions, backend: str | None, *weights: Weights, names: tuple[str, str] = WEIGHTS
) -> Tensor:
    """`score_call` where rows of images and of captions have weights, of which a direction takes its side's: two
    products for both.
    """
    if all(side is None for side in weights):
        return score_call(call, options, backend)
    if options.direction == BOTH:
        sides = ("t2i", (None, weights[1])), ("i2t", (weights[0], None))
        t2i, i2t = (
            weighted_scores(call, checked(MaxSimOptions, options, {"direction": way}), backend, *side, names=names)
            for way, side in sides
        )
        return (t2i + i2t) / 2
    side = int(options.direction == "t2i")
    if weights[1 - side] is not None:
        raise ValueError(f"{names[1 - side]} weigh maxima that this direction does not take: {names[side]} do")
    row_weights = weights[side]
    assert row_weights is not None
    return score_call(*weighted(call, options, row_weights, names[side]), backend)


def score_call(call: Call, options: MaxSimOptions, backend: str | None) -> Tensor:
    """Scores of a checked call, (n_images, n_captions), or (P,) of selected pairs."""
    if options.direction == BOTH:
        t2i, i2t = score_both_ways(call, checked(MaxSimOptions, options, {"direction": "t2i"}), backend)
        return (t2i + i2t) / 2
    scores: Tensor = serve(SCORES, backend, call, options, listed=LISTED)
    return scores


def score_both_ways(call: Call, options: MaxSimOptions, backend: str | None) -> tuple[Tensor, Tensor]:
    """`score_call` in the direction of the options, and in the other one."""
    short = call.images.width * call.captions.width <= MOST_CELLS
    if short and select_backend(backend, call.values.device, call.values.dtype) in BOTH_WAYS:
        both: tuple[Tensor, Tensor] = serve(BOTH_WAYS, backend, call, options, listed=LISTED_BOTH_WAYS)
        return both
    return score_call(call, options, backend), score_call(call, options.turned, backend)


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
    options: MaxSimOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
    **fields: Unpack[MaxSimFields],
) -> MaxSimArgmax:
    """`maxsim_scores`, and which context each query takes, in one direction.

    "cpu" finds both in one pass over the pairs, but where gradients are required or torch.func transforms it; elsewhere
    contexts take a second one. Arguments and errors are those of `maxsim_scores`; contexts are those of similarities
    before any clip. "cpu" joins lists, a copy.
    """
    options = checked(MaxSimOptions, options, fields)
    choose("direction", options.direction, DIRECTIONS)
    choose("context_pooling", options.context_pooling, ("max",))
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    call = as_call(sides, pairs, candidates, query, options.direction)
    queries, values = call.sides(options.direction)[0], call.values
    width = queries.most_rows
    if select_backend(backend, values.device, values.dtype) == "cpu" and not (transformed() or call.gradients):
        arguments = (empty_score, reduced_float32(on_gpu=False), *options.codes, width)
        scores, indices = call.run(SCORES_AND_ARGMAX, arguments, queries=queries)
    else:
        scores = score_call(call, options, backend)
        places = checked(MaxSimOptions, None, {"direction": options.direction, "normalize": options.normalize})
        indices = serve(ARGMAX, backend, call, places, width=(width,), fill=-1)
    return MaxSimArgmax(call.as_scores(scores), call.shaped(indices))


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

    Results are the first k of a stable descending sort of `maxsim_scores`, to the last bit wherever a pair's score
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
