"""`maxsim_argmax`: which context each query of Sum-Max takes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.backends import select_backend
from crossret_kernels.inputs.call import Features, Lengths, as_call
from crossret_kernels.inputs.options import DIRECTIONS, checked, choose
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.maxsim.op import ARGMAX, SCORES_AND_ARGMAX, score_call
from crossret_kernels.maxsim.options import MaxSimFields, MaxSimOptions
from crossret_kernels.torch_internals import reduced_float32, transformed
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
