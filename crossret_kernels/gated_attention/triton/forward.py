"""Gated attention in Triton: gates, W_q · o, hidden units and logits of a tile of pairs stay on the chip; their weights
and one side's contexts pass through a bounded workspace.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.attention import EPS
from crossret_kernels.gated_attention.triton.call import GatedCall, sigmoid, tanh, tile_of_pairs
from crossret_kernels.gpu.planning import PairPart

FLOOR = tl.constexpr(EPS)


@triton.jit(
    do_not_specialize=["n_others", "slots", "hidden_blocks", "gate_steps", "own_stride", "other_stride"],
    do_not_specialize_on_alignment=["mask"],
)
def gated_weights(
    keys, mask, memory, other_memory, weight, bias, gates, hidden, weights, alpha, n_others, slots, hidden_blocks,
    gate_steps, own_stride, other_stride, KIND: tl.constexpr,
):  # fmt: skip
    """The softmax over an own item's rows (Eqs. 12–14) in pairs with a tile of others."""
    ROWS: tl.constexpr = KIND.ROWS
    HIDDEN: tl.constexpr = KIND.HIDDEN
    H = hidden_blocks * HIDDEN
    G = gate_steps * KIND.STEP
    own, others, valid, pairs = tile_of_pairs(n_others, own_stride, other_stride, KIND)
    places = tl.cdiv(slots, ROWS) * ROWS
    columns = tl.arange(0, HIDDEN)
    g = tl.arange(0, KIND.STEP)
    to = weights + pairs[:, None] * places
    of_others = other_memory + others.to(tl.int64)[:, None] * G + g[None, :]
    most = tl.full((KIND.PAIRS,), -float("inf"), tl.float32)
    total = tl.full((KIND.PAIRS,), 0, tl.float32)
    for first in range(0, places, ROWS):
        s = first + tl.arange(0, ROWS)
        logits = tl.full((KIND.PAIRS, ROWS), 0, tl.float32)
        for unit in range(0, H, HIDDEN):
            sums = tl.full((KIND.PAIRS, HIDDEN), 0, tl.float32)
            of_units = weight + (unit + columns).to(tl.int64)[:, None] * G + g[None, :]
            for step in range(0, G, KIND.STEP):
                a = tl.load(memory + own * G + step + g).to(tl.float32)
                b = tl.load(of_others + step, mask=valid[:, None], other=0.0).to(tl.float32)
                gate = sigmoid(alpha * a[None, :] + (1.0 - alpha) * b, KIND.QUICK).to(weight.dtype.element_ty)
                sums = tl.dot(gate, tl.trans(tl.load(of_units + step)), sums, input_precision=KIND.PRECISION)
                if KIND.STORE:  # noqa: SIM102
                    if first + unit == 0:
                        tl.store(gates + pairs[:, None] * G + step + g[None, :], gate, mask=valid[:, None])
            h = tanh(sums + tl.load(bias + unit + columns)[None, :], KIND.QUICK).to(keys.dtype.element_ty)
            if KIND.STORE:
                tl.store(hidden + pairs[:, None] * H + unit + columns[None, :], h, mask=valid[:, None])
            cells = keys + (own * slots + s)[:, None] * H + unit + columns[None, :]
            k = tl.load(cells, mask=(s < slots)[:, None], other=0.0)
            logits = tl.dot(h, tl.trans(k), logits, input_precision=KIND.PRECISION)
        kept = tl.load(mask + own * slots + s, mask=s < slots, other=0) != 0
        logits = tl.where(kept[None, :], logits, -float("inf"))
        # A NaN shows in its exponential.
        larger = tl.maximum(most, tl.max(tl.where(logits == logits, logits, -float("inf")), 1))
        base = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(most - base) + tl.sum(tl.exp(logits - base[:, None]), 1)
        most = larger
        tl.store(to + s[None, :], logits, mask=valid[:, None])
    tl.debug_barrier()  # logits are read again, by whichever thread
    base = tl.where(most == -float("inf"), 0.0, most)
    for first in range(0, places, ROWS):
        s = first + tl.arange(0, ROWS)
        logits = tl.load(to + s[None, :], mask=valid[:, None], other=0.0)
        tl.store(to + s[None, :], tl.exp(logits - base[:, None]) / total[:, None], mask=valid[:, None])


@triton.jit(
    do_not_specialize=["n_others", "slots", "blocks", "own_stride", "other_stride", "score_stride"],
    do_not_specialize_on_alignment=["scores", "grads"],
)
def gated_contexts(
    values, weights, bias, contexts, other_contexts, scores, grads, statistics, n_others, slots, blocks, own_stride,
    other_stride, score_stride, KIND: tl.constexpr,
):  # fmt: skip
    """The own side's contexts of a tile of pairs: v⁽²⁾ of images (Eq. 15); t⁽²⁾ of captions, with v⁽²⁾ to the score.

    `statistics` gets of every pair what its contexts' gradients are made of: ∂L/∂v = a t + b v, ∂L/∂t = a v + c t.
    """
    ROWS: tl.constexpr = KIND.ROWS
    COLUMNS: tl.constexpr = KIND.COLUMNS
    D = blocks * COLUMNS
    own, others, valid, pairs = tile_of_pairs(n_others, own_stride, other_stride, KIND)
    places = tl.cdiv(slots, ROWS) * ROWS
    dot = tl.full((KIND.PAIRS,), 0, tl.float32)
    square = tl.full((KIND.PAIRS,), 0, tl.float32)
    other_square = tl.full((KIND.PAIRS,), 0, tl.float32)
    for column in range(0, D, COLUMNS):
        d = column + tl.arange(0, COLUMNS)
        sums = tl.full((KIND.PAIRS, COLUMNS), 0, tl.float32)
        for first in range(0, places, ROWS):
            s = first + tl.arange(0, ROWS)
            w = tl.load(weights + pairs[:, None] * places + s[None, :], mask=valid[:, None], other=0.0)
            cells = values + (own * slots + s)[:, None] * D + d[None, :]
            x = tl.load(cells, mask=(s < slots)[:, None], other=0.0)
            sums = tl.dot(w.to(x.dtype), x, sums, input_precision=KIND.PRECISION)
        at = pairs[:, None] * D + d[None, :]
        if KIND.IMAGES:
            sums = tanh(sums + tl.load(bias + d)[None, :], KIND.QUICK)
            tl.store(contexts + at, sums.to(contexts.dtype.element_ty), mask=valid[:, None])
        else:
            if KIND.STORE:
                sums = sums.to(contexts.dtype.element_ty)
                tl.store(contexts + at, sums, mask=valid[:, None])
                sums = sums.to(tl.float32)
            other = tl.load(other_contexts + at, mask=valid[:, None], other=0.0).to(tl.float32)
            dot += tl.sum(sums * other, 1)
            square += tl.sum(sums * sums, 1)
            other_square += tl.sum(other * other, 1)
    if not KIND.IMAGES:
        length = tl.sqrt(square) * tl.sqrt(other_square)
        floored = length < FLOOR
        inverse = tl.where(length == 0.0, 0.0, 1.0 / tl.where(floored, FLOOR, length))
        cosine = dot * inverse
        at = others.to(tl.int64) * score_stride + own
        if KIND.STORE:
            grad = tl.load(grads + at, mask=valid, other=0.0)
            along = tl.where(floored, 0.0, -grad * cosine)
            tl.store(statistics + 4 * pairs, grad * inverse, mask=valid)
            tl.store(statistics + 4 * pairs + 1, along / tl.where(floored, 1.0, other_square), mask=valid)
            tl.store(statistics + 4 * pairs + 2, along / tl.where(floored, 1.0, square), mask=valid)
        else:
            tl.store(scores + at, cosine, mask=valid)


class GatedState(NamedTuple):
    """State of a part's pairs (P, …), of images and of captions; without gradients weights and images' contexts."""

    weights: list[Tensor]
    contexts: list[Tensor]
    gates: list[Tensor]
    hidden: list[Tensor]
    statistics: Tensor


def attend(call: GatedCall, part: PairPart, scores: Tensor, grads: Tensor) -> GatedState:
    """Launches what makes a part's scores, or what the gradients' kernels read."""
    sides = [own.part(*where) for own, where in zip(call.sides, part, strict=True)]
    n_pairs, store = part.counts[0] * part.counts[1], call.kind.STORE
    empty = sides[0].keys.new_empty

    def stored(*widths: int) -> list[Tensor]:
        return [empty(n_pairs, width) if store else sides[0].keys for width in widths]

    first = empty(n_pairs, call.dim)
    made = GatedState(
        [call.bias.new_empty(n_pairs, pitch) for pitch in call.pitches], [first, stored(call.dim)[0]],
        stored(call.gate, call.gate), stored(*call.hidden), call.bias.new_empty(n_pairs, 4) if store else call.bias,
    )  # fmt: skip
    for side, (own, other) in enumerate((sides, sides[::-1])):
        call.run(
            gated_weights, part, side,
            (own.keys, own.mask, own.memory, other.memory, own.weight, own.bias, made.gates[side], made.hidden[side],
             made.weights[side], call.alpha),
            (call.slots[side], call.hidden[side] // call.kind.HIDDEN, call.gate // call.kind.STEP),
        )  # fmt: skip
    of_part = [x[part.images[0] :, part.captions[0] :] for x in (scores, grads)]
    for side, own in enumerate(sides):
        call.run(
            gated_contexts, part, side,
            (own.values, made.weights[side], call.bias, made.contexts[side], made.contexts[1 - side], *of_part,
             made.statistics),
            (call.slots[side], call.dim // call.kind.COLUMNS), call.counts[1],
        )  # fmt: skip
    return made


def cosines(*arguments: Any) -> Tensor:
    """`crossret::gated_attention_triton`: cosines of v⁽²⁾ and t⁽²⁾ (n_images, n_captions), float32."""
    *operands, pairs, alpha, bfloat16 = arguments
    assert pairs is None  # of all pairs alone
    scores = operands[0].new_empty(operands[0].size(0), operands[4].size(0))
    if scores.numel():
        call = GatedCall(operands, alpha, bfloat16, store=False)
        for part in call.parts():
            attend(call, part, scores, scores)
    return scores
