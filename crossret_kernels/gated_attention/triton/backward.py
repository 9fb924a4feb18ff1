"""Gradients of gated attention in Triton: pairs are made again in parts, whose gates and hidden units are kept for two
more products like the forward pass's. Items' gradients are summed by one program each, always in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.chunks import multiply
from crossret_kernels.gated_attention.triton.call import GatedCall, tile_of_pairs
from crossret_kernels.gated_attention.triton.forward import attend
from crossret_kernels.gpu.planning import PairPart, as_wanted


@triton.jit(do_not_specialize=["n_others", "blocks", "own_stride", "other_stride"])
def gated_context_gradients(
    contexts, other_contexts, statistics, n_others, blocks, own_stride, other_stride, KIND: tl.constexpr
):  # fmt: skip
    """∂L of what the weights' sums are, P I_m of images behind its tanh, in place of both sides' contexts."""
    COLUMNS: tl.constexpr = KIND.COLUMNS
    D = blocks * COLUMNS
    _, _, valid, pairs = tile_of_pairs(n_others, own_stride, other_stride, KIND)
    a = tl.load(statistics + 4 * pairs, mask=valid, other=0.0)[:, None]
    b = tl.load(statistics + 4 * pairs + 1, mask=valid, other=0.0)[:, None]
    c = tl.load(statistics + 4 * pairs + 2, mask=valid, other=0.0)[:, None]
    for column in range(0, D, COLUMNS):
        at = pairs[:, None] * D + column + tl.arange(0, COLUMNS)[None, :]
        v = tl.load(contexts + at, mask=valid[:, None], other=0.0).to(tl.float32)
        t = tl.load(other_contexts + at, mask=valid[:, None], other=0.0).to(tl.float32)
        of_v = (a * t + b * v) * (1.0 - v * v)
        tl.store(contexts + at, of_v.to(contexts.dtype.element_ty), mask=valid[:, None])
        tl.store(other_contexts + at, (a * v + c * t).to(contexts.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["n_others", "slots", "blocks", "own_stride", "other_stride"])
def gated_logit_gradients(
    values, contexts, weights, logits, n_others, slots, blocks, own_stride, other_stride, KIND: tl.constexpr
):  # fmt: skip
    """∂L/∂logits of a tile of pairs, through the softmax, of their contexts' gradients."""
    ROWS: tl.constexpr = KIND.ROWS
    COLUMNS: tl.constexpr = KIND.COLUMNS
    D = blocks * COLUMNS
    own, _, valid, pairs = tile_of_pairs(n_others, own_stride, other_stride, KIND)
    places = tl.cdiv(slots, ROWS) * ROWS
    along = tl.full((KIND.PAIRS,), 0, tl.float32)
    for first in range(0, places, ROWS):
        s = first + tl.arange(0, ROWS)
        sums = tl.full((KIND.PAIRS, ROWS), 0, tl.float32)
        for column in range(0, D, COLUMNS):
            d = column + tl.arange(0, COLUMNS)
            grads = tl.load(contexts + pairs[:, None] * D + d[None, :], mask=valid[:, None], other=0.0)
            x = tl.load(values + (own * slots + s)[:, None] * D + d[None, :], mask=(s < slots)[:, None], other=0.0)
            sums = tl.dot(grads, tl.trans(x), sums, input_precision=KIND.PRECISION)
        at = pairs[:, None] * places + s[None, :]
        along += tl.sum(sums * tl.load(weights + at, mask=valid[:, None], other=0.0), 1)
        tl.store(logits + at, sums, mask=valid[:, None])
    tl.debug_barrier()  # sums are read again, by whichever thread
    for first in range(0, places, ROWS):
        at = pairs[:, None] * places + first + tl.arange(0, ROWS)[None, :]
        w = tl.load(weights + at, mask=valid[:, None], other=0.0)
        sums = tl.load(logits + at, mask=valid[:, None], other=0.0)
        tl.store(logits + at, w * (sums - along[:, None]), mask=valid[:, None])


@triton.jit(do_not_specialize=["n_others", "slots", "blocks", "own_stride", "other_stride"])
def gated_item_gradients(
    weights, rows, out, n_others, slots, blocks, own_stride, other_stride, KIND: tl.constexpr
):  # fmt: skip
    """Adds Σ weight · row over an own item's pairs, a block of columns: ∂L of its values, and of its keys."""
    ROWS: tl.constexpr = KIND.ROWS
    COLUMNS: tl.constexpr = KIND.COLUMNS
    D = blocks * COLUMNS
    own = (tl.program_id(0) // blocks).to(tl.int64)
    d = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    places = tl.cdiv(slots, ROWS) * ROWS
    for first in range(0, places, ROWS):
        s = first + tl.arange(0, ROWS)
        sums = tl.full((ROWS, COLUMNS), 0, tl.float32)
        for other in range(0, n_others, ROWS):
            others = other + tl.arange(0, ROWS)
            valid = (others < n_others)[:, None]
            pairs = own * own_stride + others.to(tl.int64) * other_stride
            w = tl.load(weights + pairs[:, None] * places + s[None, :], mask=valid, other=0.0)
            x = tl.load(rows + pairs[:, None] * D + d[None, :], mask=valid, other=0.0)
            sums = tl.dot(tl.trans(w.to(x.dtype)), x, sums, input_precision=KIND.PRECISION)
        at = out + (own * slots + s)[:, None] * D + d[None, :]
        inside = (s < slots)[:, None]
        tl.store(at, tl.load(at, mask=inside, other=0.0) + sums, mask=inside)


@triton.jit(do_not_specialize=["n_others", "slots", "blocks", "own_stride", "other_stride"])
def gated_hidden_gradients(
    keys, logits, hidden, n_others, slots, blocks, own_stride, other_stride, KIND: tl.constexpr
):  # fmt: skip
    """∂L/∂(W_q o + b_q) of a tile of pairs, in place of their hidden units."""
    ROWS: tl.constexpr = KIND.ROWS
    COLUMNS: tl.constexpr = KIND.COLUMNS
    H = blocks * COLUMNS
    own, _, valid, pairs = tile_of_pairs(n_others, own_stride, other_stride, KIND)
    places = tl.cdiv(slots, ROWS) * ROWS
    for unit in range(0, H, COLUMNS):
        columns = unit + tl.arange(0, COLUMNS)
        sums = tl.full((KIND.PAIRS, COLUMNS), 0, tl.float32)
        for first in range(0, places, ROWS):
            s = first + tl.arange(0, ROWS)
            w = tl.load(logits + pairs[:, None] * places + s[None, :], mask=valid[:, None], other=0.0)
            k = tl.load(keys + (own * slots + s)[:, None] * H + columns[None, :], mask=(s < slots)[:, None], other=0.0)
            sums = tl.dot(w.to(k.dtype), k, sums, input_precision=KIND.PRECISION)
        at = hidden + pairs[:, None] * H + columns[None, :]
        h = tl.load(at, mask=valid[:, None], other=0.0).to(tl.float32)
        tl.store(at, (sums * (1.0 - h * h)).to(hidden.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["n_others", "blocks", "own_stride", "other_stride"])
def gated_memory_gradients(
    gates, grads, other_gates, other_grads, out, alpha, n_others, blocks, own_stride, other_stride, KIND: tl.constexpr
):  # fmt: skip
    """Adds ∂L/∂memory of an own item, a block of its columns, from both gates of all its pairs."""
    G = blocks * KIND.COLUMNS
    own = (tl.program_id(0) // blocks).to(tl.int64)
    g = tl.program_id(0) % blocks * KIND.COLUMNS + tl.arange(0, KIND.COLUMNS)
    sums = tl.load(out + own * G + g)
    for other in range(0, n_others, KIND.ROWS):
        others = other + tl.arange(0, KIND.ROWS)
        valid = (others < n_others)[:, None]
        at = (own * own_stride + others.to(tl.int64) * other_stride)[:, None] * G + g[None, :]
        o = tl.load(gates + at, mask=valid, other=0.0).to(tl.float32)
        made = alpha * o * (1.0 - o) * tl.load(grads + at, mask=valid, other=0.0)
        o = tl.load(other_gates + at, mask=valid, other=0.0).to(tl.float32)
        made += (1.0 - alpha) * o * (1.0 - o) * tl.load(other_grads + at, mask=valid, other=0.0)
        sums += tl.sum(made, 0)
    tl.store(out + own * G + g, sums)


class _GatedGradients:
    """Sums of a call's gradients, in whole blocks of columns."""

    def __init__(self, call: GatedCall) -> None:
        def zeros(*shape: int) -> Tensor:
            return call.bias.new_zeros(shape)

        self.call, sides = call, call.sides
        self.keys, self.values, self.memory = ([zeros(*own[field].shape) for own in sides] for field in range(3))
        self.weight, self.bias = ([zeros(*own[field].shape) for own in sides] for field in (4, 5))
        self.embedding_bias = zeros(call.dim)

    def add(self, part: PairPart, grad: Tensor) -> None:
        """Gradients from those of a part's scores."""
        call = self.call
        made = attend(call, part, grad, grad)
        blocks, of_gate = call.dim // call.kind.COLUMNS, call.gate // call.kind.COLUMNS
        call.run(gated_context_gradients, part, 0, (*made.contexts, made.statistics), (blocks,))
        self.embedding_bias += made.contexts[0].sum(0, dtype=torch.float32)
        of_gates = [call.bias.new_empty(made.gates[0].shape) for _ in range(2)]
        for side, where in enumerate(part):
            own, slots, of_hidden = call.sides[side].part(*where), call.slots[side], call.hidden[side]
            of_hidden //= call.kind.COLUMNS
            weights, contexts, hidden = made.weights[side], made.contexts[side], made.hidden[side]
            keys, values = (x[side][slice(*where)] for x in (self.keys, self.values))
            call.run(gated_item_gradients, part, side, (weights, contexts, values), (slots, blocks), blocks=blocks)
            logits = torch.empty_like(weights)
            call.run(gated_logit_gradients, part, side, (own.values, contexts, weights, logits), (slots, blocks))
            call.run(gated_item_gradients, part, side, (logits, hidden, keys), (slots, of_hidden), blocks=of_hidden)
            call.run(gated_hidden_gradients, part, side, (own.keys, logits, hidden), (slots, of_hidden))
            self.bias[side] += hidden.sum(0, dtype=torch.float32)
            product = torch.empty_like(self.weight[side])
            multiply(hidden.mT, made.gates[side], product)
            self.weight[side] += product
            multiply(hidden, own.weight, of_gates[side])
        for side, where in enumerate(part):
            both = [x for place in (side, 1 - side) for x in (made.gates[place], of_gates[place])]
            out = self.memory[side][slice(*where)]
            call.run(gated_memory_gradients, part, side, (*both, out, call.alpha), (of_gate,), blocks=of_gate)


def gradients(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """`crossret::gated_attention_triton_backward`: float32, of what is wanted; else empty."""
    operands, pairs, alpha, bfloat16, wanted = arguments[:13], *arguments[13:16], arguments[16:]
    assert pairs is None  # of all pairs alone
    differentiable = [x for index, x in enumerate(operands) if index not in (3, 7)]
    if not grad.numel():
        return as_wanted(None, differentiable, wanted)
    sums, grad = _GatedGradients(GatedCall(operands, alpha, bfloat16, store=True)), grad.contiguous()
    for part in sums.call.parts():
        sums.add(part, grad)
    of_items = [x[side] for side in (0, 1) for x in (sums.keys, sums.values, sums.memory)]
    of_steps = [x[side] for side in (0, 1) for x in (sums.weight, sums.bias)]
    return as_wanted((*of_items, *of_steps, sums.embedding_bias), differentiable, wanted)
