"""`heterogeneous_scores` and `heterogeneous_attention_weights`: HAN's layers, then their matching; their dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.backends import select_backend
from crossret_kernels.cross_attention.op import score_call
from crossret_kernels.cross_attention.scan_attend import ScanAttention
from crossret_kernels.cross_attention.torch import scan_attend_chunked
from crossret_kernels.heterogeneous_attention.kernels import KERNELS
from crossret_kernels.heterogeneous_attention.options import (
    HeterogeneousFields,
    HeterogeneousLayer,
    HeterogeneousOptions,
    check_layers,
)
from crossret_kernels.heterogeneous_attention.pairs import first_valid
from crossret_kernels.heterogeneous_attention.reference import heterogeneous_attention_reference
from crossret_kernels.heterogeneous_attention.torch import heterogeneous_attention_chunked
from crossret_kernels.inputs.call import Call, Features, Lengths, as_call, check_traceable
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, checkable
from crossret_kernels.padded.forms import gather_items
from crossret_kernels.torch_internals import transformed


def heterogeneous_scores(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
    **fields: Unpack[HeterogeneousFields],
) -> Tensor:
    """Scores of images and captions after layers of attention over both together (HAN, Yu et al. 2021, §3.2–3.3).

    The rows of an image and of a caption are concatenated, without type or position. A layer has queries, keys and
    values of them (linear, with biases), of each head the weights softmax(λ q·k) over all rows of the pair, the heads'
    outputs concatenated and projected, the query added to them, and a layer normalisation.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score: as `scan_scores` takes them.
        layers: parameters of the layers, the first of which is the lowest; none for the matching alone. On the
            features' device; float64 with float64 features, else any narrower floating point.
        options: how pairs are scored; None: the defaults of `HeterogeneousOptions`, which documents its fields.
        **fields: fields of `HeterogeneousOptions`, as ``heads=8``, in place of those of `options`.
        pairs, candidates: as in `pairwise_scores`.
        query: whose candidates they are: "caption" or "image"; None: the side's that attends in `direction` (captions'
            for t2i, images' for i2t), for either matching.
        backend: "cpu", "triton", "torch" or "reference"; without layers any that `scan_scores` has. None takes what
            CROSSRET_BACKEND prefers where it serves the call, else the fastest that does. "cpu" serves all but float64,
            torch.compile and torch.func's transforms, "triton" of that all pairs after one layer; of bfloat16 features,
            and under autocast to it, products are of bfloat16 and sums of float32: of "cpu" those of linear layers and,
            of all pairs after one layer, what docs/kernels.md §4 names.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. float32, float64 for float64
        features. Differentiable in regions, words and all parameters.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_scores`, of parameters, too; packed or listed features
            inside torch.compile, but for scores without layers.

    NumPy arrays serve as in `scan_scores`. A NaN feature makes its item's scores NaN and no others; without layers
    the global matching reads an item's first row alone, and NaN in others goes unseen. Under autocast products are made
    in its dtype, softmax, normalisations and scores in float32. Where pairs are not listed, "torch" makes what the
    first layer shares of an item (docs/kernels.md §3) once for each group of the other side's items, and not once a
    pair; higher layers are each pair's own. What pairs take is made in chunks of bounded size, of one pair at least,
    and again in the backward pass: of those pairs alone whose scores have a gradient, where they are few, as under a
    hardest negative's loss. Inside torch.compile, under torch.func and for second derivatives all pairs are taken as
    listed ones are, whose second derivatives "torch" alone has.
    """
    options = checked(HeterogeneousOptions, options, fields)
    sides = (regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    return attend(sides, layers, options, (pairs, candidates, query), backend, weights=False)[0]


def heterogeneous_attention_weights(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
    **fields: Unpack[HeterogeneousFields],
) -> ScanAttention:
    """The attention by which `heterogeneous_scores` with matching="local" scores pairs, as `scan_attention` returns it.

    Arguments and errors are those of `heterogeneous_scores`; the backend is "cpu", "torch" or "reference". One of
    `pairs` and `candidates` is needed, as the weights of all pairs would fill the memory.
    """
    if pairs is None and candidates is None:
        raise ValueError(
            "heterogeneous_attention_weights takes pairs or candidates: the weights of all pairs are not kept"
        )
    options = checked(HeterogeneousOptions, options, fields)
    if options.matching != "local":
        raise ValueError(f"heterogeneous_attention_weights has matching 'local' alone, not {options.matching!r}")
    sides = (regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    return ScanAttention(*attend(sides, layers, options, (pairs, candidates, query), backend, weights=True))


def attend(
    sides: tuple[Any, ...],
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions,
    selection: tuple[Array | None, Array | None, str | None],
    backend: str | None,
    *,
    weights: bool,
) -> Sequence[Tensor]:
    """Scores of a `selection` of pairs, and the weights and relevances of their local matching if these are wanted.

    `sides` are what `as_sides` takes, the score of empty items last.
    """
    call = as_call(sides, *selection, options.direction)
    images, captions = call.images, call.captions
    parameters = check_layers(layers, images.values, options.heads)
    if not parameters and not weights:
        if options.matching == "global":
            empty = call.empty_score is not None
            call = Call(_first_rows(images, empty), _first_rows(captions, empty), call.pairs, call.empty_score)
        return [call.as_scores(score_call(call, options.local, backend))]
    listed = call.listed
    check_traceable("heterogeneous attention takes padded features", images, captions)
    dtype = images.values.dtype
    in_torch = _torch_part(len(parameters))
    refusal = in_torch and f"{in_torch} made in PyTorch operations, by 'torch' and 'reference'"
    by_kernels = listed is None and len(parameters) == 1 and options.pooling != "softmax"
    served_by = ("cpu", *KERNELS) if by_kernels else ("cpu",)
    backend_name = select_backend(backend, images.values.device, dtype, refusal, served_by)
    if backend_name != "reference":
        dtype = torch.promote_types(dtype, torch.float32)
    parameters = tuple(layer.to(dtype) for layer in parameters)
    if backend_name == "torch" and not parameters:
        scores, _, *others = scan_attend_chunked(images, captions, cast("Tensor", listed), options.local, False)
        results = scores, *others
    elif backend_name == "reference":
        results = heterogeneous_attention_reference(images, captions, listed, parameters, options)
    else:
        results = heterogeneous_attention_chunked(images, captions, listed, parameters, options, backend_name)
    return call.as_results(results if weights else results[:1])


def _torch_part(layers: int) -> str | None:
    """The part of a call that kernels do not compute, or None."""
    if layers == 0:
        return "attention without layers is"
    if transformed() or not checkable():
        return "what torch.compile or torch.func's transforms take is"
    return None


def _first_rows(side: Ragged, empty: bool) -> Ragged:
    """The first row of every item, where items may be `empty` of those that have one."""
    lengths = (~side.empty).to(torch.int64) if empty else None
    if side.mask is not None and side.mask.size(1):
        mask = side.mask.to(side.values.device, non_blocking=True)
        return Ragged.trusted(first_valid(side.values, mask).unsqueeze(1), None, lengths)
    if side.offsets is None:
        return Ragged.trusted(side.values[:, :1], None, lengths)
    return Ragged.trusted(gather_items(side, torch.arange(len(side), device=side.values.device), 1)[0], None, lengths)
