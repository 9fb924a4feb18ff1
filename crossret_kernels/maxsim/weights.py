"""Weights of rows in Sum-Max: what each row's maximum counts for, multiplied into the row ahead of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from crossret_kernels.inputs.call import Call
from crossret_kernels.inputs.options import checked, choose
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, as_tensor, checkable
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.forms import pad_items

Weights: TypeAlias = "Array | Sequence[Array] | None"


def weighted(
    call: Call, options: MaxSimOptions, weights: Array | Sequence[Array], name: str
) -> tuple[Call, MaxSimOptions]:
    """The call with every row of the maximising side times its weight, in the features' dtype, and its options.

    Differentiable in both. Rows of padding are zeros: no gradient passes what they or their weights are.

    Args:
        weights: laid out as the rows: (n, L) of padded ones, (rows,) of packed ones, a list of (L_k,) of a list.
        name: for errors.

    Raises TypeError or ValueError naming the argument where weights are no floating-point numbers of that shape on the
    features' device; on the CPU, which need not wait to look, also where one is below 0.
    """
    choose("context_pooling beside weights", options.context_pooling, ("max",))
    attending = int(options.direction == "t2i")
    row_weights = _row_weights(weights, (call.images, call.captions)[attending], name)
    sides = [call.images.joined(), call.captions.joined()]
    for place, side in enumerate(sides):
        if side.offsets is None and side.values.size(1):
            rows, mask = pad_items(side)
            sides[place] = side.with_values(rows)
            if place == attending:
                row_weights = row_weights.masked_fill(~mask | side.empty[:, None], 0)
    if checkable() and row_weights.device.type == "cpu":
        for place in (row_weights < 0).nonzero().tolist():
            raise ValueError(f"{name}{place} is {row_weights[tuple(place)].item():g}: weights must be at least 0")
    if options.normalize:  # ahead of the weights
        sides = [side.with_values(safe_normalize(side.values)) for side in sides]
        options = checked(MaxSimOptions, options, {"normalize": False})
    values = sides[attending].values
    sides[attending] = sides[attending].with_values((values * row_weights.unsqueeze(-1)).to(values.dtype))
    images, captions = sides
    return Call(images, captions, call.pairs, call.empty_score), options


def _row_weights(weights: Array | Sequence[Array], side: Ragged, name: str) -> Tensor:
    parts = [as_tensor(x, name) for x in (weights if isinstance(weights, (list, tuple)) else [weights])]
    for part in parts:
        if not isinstance(part, Tensor) or not part.is_floating_point():
            kind = part.dtype if isinstance(part, Tensor) else type(part).__name__
            raise TypeError(f"{name} must be floating-point numbers, a tensor or an array, not {kind}")
    rows = [side.values] if side.items is None else [*side.items]
    if isinstance(weights, (list, tuple)) and side.items is None and len(side) == len(parts) == 1:
        parts = [parts[0].view(side.values.shape[:-1])] if parts[0].numel() == side.width else parts  # a list of one
    if len(parts) != len(rows):
        layout = "one tensor or array" if side.items is None else f"a list of {len(rows)} items"
        raise ValueError(f"{name} must be laid out as the features, {layout}")
    for place, (part, values) in enumerate(zip(parts, rows, strict=True)):
        label = name if side.items is None else f"{name}[{place}]"
        if part.shape != values.shape[:-1]:
            raise ValueError(
                f"{label} must have shape {tuple(values.shape[:-1])}, one for each row, got {tuple(part.shape)}"
            )
        if part.device != values.device:
            raise ValueError(f"{label} is on {part.device} but the features on {values.device}")
    return torch.cat(parts) if len(parts) > 1 else parts[0]
