"""`maxsim_scores`: Sum-Max scores of images and captions; schemas and dispatch to backends of Sum-Max."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.inputs.call import Call, Features, Lengths, as_call
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.maxsim.options import MaxSimFields, MaxSimOptions
from crossret_kernels.maxsim.reference import maxsim_argmax_reference, maxsim_scores_reference
from crossret_kernels.maxsim.torch import maxsim_argmax_chunked, maxsim_scores_chunked
from crossret_kernels.operations import Kernels, define
from crossret_kernels.two_sides import (
    LISTED_SIDES,
    OPTIONS,
    PLAIN_SIDES,
    SIDES,
    indices_like,
    scores_and_indices_like,
    scores_like,
    serve,
)

MAXSIM_OPTIONS = f"{OPTIONS}, {MaxSimOptions.schema}"


def _triton() -> Kernels:
    from crossret_kernels.maxsim.triton import gradients, searches

    return Kernels(searches.scores, gradients.gradients)


def _triton_argmax() -> Kernels:
    from crossret_kernels.maxsim.triton import searches

    return Kernels(searches.indices)


SCORES = {
    # Saved is which context every query takes.
    "cpu": define(
        "maxsim_scores", SIDES, MAXSIM_OPTIONS, scores_like, made="(Tensor, Tensor)", autocast=True, saves=True
    ),
    "triton": define("maxsim_scores_triton", SIDES, MAXSIM_OPTIONS, scores_like, kernels=_triton, autocast=True),
    "torch": maxsim_scores_chunked,
    "reference": maxsim_scores_reference,
}
LISTED = define("maxsim_scores_listed", LISTED_SIDES, MAXSIM_OPTIONS, scores_like)
_ARGMAX_OPTIONS = f"{MAXSIM_OPTIONS}, SymInt? width"
# The CPU's finds scores by the way.
SCORES_AND_ARGMAX = define(
    "maxsim_argmax", PLAIN_SIDES, _ARGMAX_OPTIONS, scores_and_indices_like, made="(Tensor, Tensor)", autocast=True
)
ARGMAX = {
    "cpu": lambda *arguments: SCORES_AND_ARGMAX(*arguments)[1],
    "triton": define(
        "maxsim_argmax_triton", PLAIN_SIDES, _ARGMAX_OPTIONS, indices_like, kernels=_triton_argmax, autocast=True
    ),
    "torch": maxsim_argmax_chunked,
    "reference": maxsim_argmax_reference,
}


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
    backend: str | None = None,
    **fields: Unpack[MaxSimFields],
) -> Tensor:
    """Sum-Max scores of images and captions: SCAN Eqs. 9 and 10; MaxSim of ColBERT and ColPali.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score: as `scan_scores` takes them.
            For late interaction, regions are the tokens of the documents and words those of the queries.
        options: how pairs are scored; None: the defaults of `MaxSimOptions`, which documents its fields.
        **fields: fields of `MaxSimOptions`, as ``direction="i2t"``, in place of those of `options`.
        pairs, candidates: as `scan_scores` takes them; `maxsim_topk` finds candidates.
        query: whose candidates they are: "caption" or "image"; None: the maximising side's (captions' for t2i, images'
            for i2t).
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
    return call.as_scores(score_call(call, options, backend))


def score_call(call: Call, options: MaxSimOptions, backend: str | None) -> Tensor:
    """Scores of a checked call, (n_images, n_captions), or (P,) of selected pairs."""
    return serve(SCORES, backend, call, options, listed=LISTED)
