"""Operations over images and captions: operands, shapes of results, and the backend that serves a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend, select_backend
from crossret_kernels.fastest import asked, fastest_first
from crossret_kernels.inputs.call import Call
from crossret_kernels.inputs.options import Directed
from crossret_kernels.operations import Operand
from crossret_kernels.padded.arithmetic import mean
from crossret_kernels.torch_internals import reduced_float32


def _side(features: str, item: str) -> tuple[Operand, ...]:
    return Operand(features, "Tensor", True), *(Operand(f"{item}_{part}") for part in ("offsets", "lengths", "mask"))


# Operands of both sides, as `Ragged.tensors` returns them. Masks are (n, L) bool, of padded features alone.
SIDES = (*_side("regions", "region"), *_side("words", "word"), Operand("pairs"))
# Operands of an operation without gradients.
PLAIN_SIDES = tuple(operand._replace(differentiable=False) for operand in SIDES)
# Operands as `Ragged.listed` returns them: several items without offsets, lengths or mask, or one tensor with them.
# Items of a list are joined instead where a gradient, a transformation or autocast goes through them.
LISTED_SIDES = tuple(Operand(operand.name, "Tensor[]") if operand.differentiable else operand for operand in SIDES)

# Options that every operation takes, ahead of its own. Modes are integers, the places of their names in Python, as
# torch's stable ABI leaks every string that it hands over.
OPTIONS = "float? empty_score, bool reduced_float32"

Implementations = Mapping[str, Callable[..., Any]]
_IN_TORCH = ("torch", "reference")


def serve(
    table: Implementations, backend: str | None, call: Call, options: Directed, *,
    listed: Callable[..., Tensor] | None = None, width: tuple[int | None, ...] = (), fill: float | None = None,
) -> Any:  # fmt: skip
    """Results of all pairs of a call, (n_images, n_captions, …), or of selected ones, (P, …).

    By the backend that `select_backend` finds; where the caller demands none, and it is only then seen that the items
    are too long for it or too many, by the next.

    Args:
        table: by backend, operations in kernels as `define` returns them, and functions of padded PyTorch operations
            (images, captions, list of pairs or None, options, *width), for which empty items are filled here.
        listed: the CPU's operation on lists of features.
        width: places for the queries of a result that has one for each, None for as many as the longest has.
        fill: results of pairs of an empty item, where that is not the empty score.
    """
    values, ways = call.values, options.ways
    direction = ways[0].direction
    queries = call.sides(direction)[0] if width else None
    names = tuple(name for name in table if name not in _IN_TORCH)
    first = fastest_of(call, direction) if backend is None and values.is_cuda and "cuda" in table else ()
    while (backend_name := select_backend(backend, values.device, values.dtype, None, names, first)) not in _IN_TORCH:
        on_cpu = backend_name == "cpu"
        first_arguments, lists = (call.empty_score, reduced_float32(not on_cpu)), listed if on_cpu else None
        try:
            check_supported(backend_name, options)
            inputs = ((*first_arguments, *way.codes, *width) for way in ways)
            return mean([call.run(table[backend_name], codes, listed=lists, queries=queries) for codes in inputs])
        except UnsupportedByBackend:
            if backend is not None:
                raise
            names = tuple(name for name in names if name != backend_name)
    if queries is not None:
        width = tuple(max(queries.lengths.tolist(), default=0) if places is None else places for places in width)
    results = table[backend_name](call.images, call.captions, call.listed, options, *width)
    if call.empty_score is None:
        return results
    empty = call.empty_score if fill is None else fill
    return call.filled(results, empty) if isinstance(results, Tensor) else tuple(call.filled(x, empty) for x in results)


def check_supported(backend: str, options: Directed) -> None:
    """Raises UnsupportedByBackend where its kernels do not have all of these options."""
    option = options.unsupported(backend)
    if option is not None:
        raise UnsupportedByBackend(f"backend {backend!r} has no kernels of {option}: backend='torch' serves it")


def fastest_of(call: Call, direction: str) -> tuple[str, ...]:
    """Backends of CUDA devices, the fastest of such a call of stacked cross attention first."""
    images, captions = call.images, call.captions
    work = 2 * images.values.numel() * (captions.values.numel() // max(captions.values.size(-1), 1))
    if call.pairs is not None:
        work = work // max(len(images) * len(captions), 1) * len(call.pairs)
    return fastest_first(asked(direction, images.values.dtype, work, call.gradients), images.values.device)


def scores_like(*arguments: Any) -> Tensor:
    """Scores without values of the arguments of an operation over two sides."""
    shape, features = _shape_of_pairs(arguments)
    return features.new_empty(shape, dtype=torch.float32)


def several_like(*likes: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Makes several results without values."""
    return lambda *arguments: tuple(like(*arguments) for like in likes)


def indices_like(*arguments: Any) -> Tensor:
    """Indices without values, one for every query of every pair: as many as the last argument says, None for as many as
    the longest item has rows.
    """
    width = arguments[-1]
    if width is None:
        width = torch.library.get_ctx().new_dynamic_size()
    shape, features = _shape_of_pairs(arguments)
    return features.new_empty((*shape, width), dtype=torch.int64)


def _shape_of_pairs(arguments: tuple[Any, ...]) -> tuple[tuple[int, ...], Tensor]:
    """The scores' shape, and features for their device."""
    regions, region_offsets, _, _, words, word_offsets, _, _, pairs = arguments[: len(SIDES)]
    regions, words = (side if isinstance(side, list) else [side] for side in (regions, words))
    if pairs is not None:
        return (pairs.size(0),), regions[0]
    shape = (
        len(items) if len(items) > 1 else items[0].size(0) if offsets is None else offsets.size(0) - 1
        for items, offsets in ((regions, region_offsets), (words, word_offsets))
    )
    return tuple(shape), regions[0]
