"""Gradients of heterogeneous attention in Triton, part by part: rows are made again, and each step's gradient takes the
place of what it was made of. Every item's gradient is a product of PyTorch's, added part after part.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.planning import PairPart, as_wanted
from crossret_kernels.heterogeneous_attention.triton.call import LayerCall
from crossret_kernels.heterogeneous_attention.triton.forward import (
    FLOOR,
    LayerState,
    attend,
    inverse_lengths,
    pair_of,
    tile_of_cosines,
    tile_of_logits,
)


@triton.jit
def pooled_gradients(relevances, q, n_q, grad, best, total, place, lambda_lse, KIND: tl.constexpr):
    """∂L/∂relevance of some queries, from what `pooled_statistics` found of them all."""
    relevance = tl.load(relevances + q, mask=q < n_q, other=0.0)
    if KIND.POOLING == 0:
        made = grad * tl.exp(lambda_lse * relevance - best) / total
    elif KIND.POOLING == 1:
        made = grad / n_q.to(tl.float32) + 0.0 * relevance
    elif KIND.POOLING == 2:
        made = grad + 0.0 * relevance
    else:
        made = tl.where(q == place, grad, 0.0 * relevance)
    return tl.where(q < n_q, made, 0.0), relevance


@triton.jit
def pooled_statistics(relevances, n_q, lambda_lse, KIND: tl.constexpr):
    """(Greatest exponent, their sum) of "lse"; the first place of the greatest relevance of "max"."""
    ROWS: tl.constexpr = KIND.ROWS
    best = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0, tl.float32)
    place = tl.full((), 0, tl.int32)
    if KIND.POOLING == 0 or KIND.POOLING == 3:
        for first in range(0, n_q, ROWS):
            q = first + tl.arange(0, ROWS)
            x = tl.load(relevances + q, mask=q < n_q, other=-float("inf"))
            if KIND.POOLING == 0:
                x = tl.where(q < n_q, lambda_lse * x, -float("inf"))
                larger = tl.maximum(best, tl.max(tl.where(x == x, x, -3.0e38), 0))
                total = total * tl.exp(best - larger) + tl.sum(tl.exp(x - larger), 0)
            else:
                larger = tl.maximum(best, tl.max(x, 0))
                found = tl.min(tl.where(x == larger, q, 2**30), 0)
                place = tl.where(larger > best, found, place)
            best = larger
    return best, total, place


@triton.jit(
    do_not_specialize=["n_captions", "contexts", "queries", "grad_stride"],
    do_not_specialize_on_alignment=["lengths_c", "lengths_q", "grads"],
)
def matching_gradients(
    products, grams, squares_c, squares_q, lengths_c, lengths_q, weights, attended, relevances, coefficients, grads,
    of_c, of_q, lambda_softmax, lambda_lse, n_captions, contexts, queries, grad_stride, KIND: tl.constexpr,
):  # fmt: skip
    """∂L/∂ a pair's similarities, twice ∂L/∂ its Gram matrix, in their place, and what lengths add to rows' gradients.

    `of_c` and `of_q` get of every row what its own multiple adds to its gradient. With g of a relevance r = n / ‖a‖, n
    the weighted cosines, `coefficients` are ∂L/∂n, 2 ∂L/∂‖a‖² and the softmax's Σ weight · gradient.
    """
    ROWS: tl.constexpr = KIND.ROWS
    pair, n_c, n_q = pair_of(lengths_c, lengths_q, n_captions, KIND)
    grad = tl.load(grads + pair // n_captions * grad_stride + pair % n_captions)
    products += pair * contexts * queries
    weights += pair * contexts * queries
    attended += pair * contexts * queries
    grams += pair * contexts * contexts
    squares_c += pair * contexts
    squares_q += pair * queries
    relevances += pair * queries
    coefficients += pair * queries * 3
    best, total, place = pooled_statistics(relevances, n_q, lambda_lse, KIND)
    for first_q in range(0, n_q, ROWS):
        q = first_q + tl.arange(0, ROWS)
        inverse_q = inverse_lengths(squares_q, q, q < n_q)
        product = tl.full((ROWS,), 0, tl.float32)
        square = tl.full((ROWS,), 0, tl.float32)
        for first_c in range(0, n_c, ROWS):
            c = first_c + tl.arange(0, ROWS)
            at = c[:, None] * queries + q[None, :]
            inside = (c < n_c)[:, None] & (q < n_q)[None, :]
            w = tl.load(weights + at, mask=inside, other=0.0)
            inverse_c = inverse_lengths(squares_c, c, c < n_c)
            product += tl.sum(w * tile_of_cosines(products, inverse_c, inverse_q, c, q, n_c, n_q, queries), 0)
            square += tl.sum(w * tl.load(attended + at, mask=inside, other=0.0), 0)
        of_relevance, relevance = pooled_gradients(relevances, q, n_q, grad, best, total, place, lambda_lse, KIND)
        length = tl.sqrt(tl.where(square < 0.0, 0.0, square))
        floored = (length < FLOOR) | (inverse_q == 0.0)
        zero = (length == 0.0) | (inverse_q == 0.0)
        of_product = tl.where(zero, 0.0, of_relevance / tl.where(length < FLOOR, FLOOR, length))
        of_square = tl.where(floored, 0.0, -of_relevance * relevance / tl.where(floored, 1.0, square))
        along = of_product * product + of_square * square
        tl.store(coefficients + q, of_product, mask=q < n_q)
        tl.store(coefficients + queries + q, of_square, mask=q < n_q)
        tl.store(coefficients + 2 * queries + q, along, mask=q < n_q)
    tl.debug_barrier()  # read again, by whichever thread
    for first_q in range(0, n_q, ROWS):
        q = first_q + tl.arange(0, ROWS)
        inverse_q = inverse_lengths(squares_q, q, q < n_q)
        sums = tl.full((ROWS,), 0, tl.float32)
        for first_c in range(0, n_c, ROWS):
            c = first_c + tl.arange(0, ROWS)
            inverse_c = inverse_lengths(squares_c, c, c < n_c)
            made, _, cosines = cosine_gradients(
                products, inverse_c, inverse_q, weights, attended, coefficients, c, q, n_c, n_q, queries, lambda_softmax
            )
            sums += tl.sum(made * cosines, 0)
        tl.store(of_q + pair * queries + q, -sums * inverse_q * inverse_q, mask=q < n_q)
    for first_c in range(0, n_c, ROWS):
        c = first_c + tl.arange(0, ROWS)
        inverse_c = inverse_lengths(squares_c, c, c < n_c)
        sums = tl.full((ROWS,), 0, tl.float32)
        for first_q in range(0, n_q, ROWS):
            q = first_q + tl.arange(0, ROWS)
            inverse_q = inverse_lengths(squares_q, q, q < n_q)
            made, turned, cosines = cosine_gradients(
                products, inverse_c, inverse_q, weights, attended, coefficients, c, q, n_c, n_q, queries, lambda_softmax
            )
            sums += tl.sum(made * cosines + turned, 1)
        tl.store(of_c + pair * contexts + c, -sums * inverse_c * inverse_c, mask=c < n_c)
    tl.debug_barrier()  # all similarities have been read
    for first_c in range(0, contexts, ROWS):
        c = first_c + tl.arange(0, ROWS)
        inverse_c = inverse_lengths(squares_c, c, c < n_c)
        for first_q in range(0, queries, ROWS):
            q = first_q + tl.arange(0, ROWS)
            inverse_q = inverse_lengths(squares_q, q, q < n_q)
            made, _, _ = cosine_gradients(
                products, inverse_c, inverse_q, weights, attended, coefficients, c, q, n_c, n_q, queries, lambda_softmax
            )
            made = made * inverse_c[:, None] * inverse_q[None, :]
            inside = (c < contexts)[:, None] & (q < queries)[None, :]
            tl.store(products + c[:, None] * queries + q[None, :], made, mask=inside)
        for other_c in range(0, contexts, ROWS):
            o = other_c + tl.arange(0, ROWS)
            inverse_o = inverse_lengths(squares_c, o, o < n_c)
            sums = tl.full((ROWS, ROWS), 0, tl.float32)
            for first_q in tl.range(0, n_q, ROWS, num_stages=1):
                q = first_q + tl.arange(0, ROWS)
                of_square = tl.load(coefficients + queries + q, mask=q < n_q, other=0.0)
                inside = (c < n_c)[:, None] & (q < n_q)[None, :]
                w = tl.load(weights + c[:, None] * queries + q[None, :], mask=inside, other=0.0)
                inside = (q < n_q)[:, None] & (o < n_c)[None, :]
                other_w = tl.load(weights + o[None, :] * queries + q[:, None], mask=inside, other=0.0)
                sums = tl.dot(w * of_square[None, :], other_w, sums, input_precision=KIND.PRECISION)
            made = sums * inverse_c[:, None] * inverse_o[None, :]
            inside = (c < contexts)[:, None] & (o < contexts)[None, :]
            tl.store(grams + c[:, None] * contexts + o[None, :], made, mask=inside)


@triton.jit
def cosine_gradients(
    products, inverse_c, inverse_q, weights, attended, coefficients, c, q, n_c, n_q, queries, lambda_softmax
):  # fmt: skip
    """(∂L/∂cosines of some contexts and queries, weight · (Gram matrix · weight) · 2 ∂L/∂‖a‖² of each; the cosines)."""
    cosines = tile_of_cosines(products, inverse_c, inverse_q, c, q, n_c, n_q, queries)
    of_product = tl.load(coefficients + q, mask=q < n_q, other=0.0)[None, :]
    of_square = tl.load(coefficients + queries + q, mask=q < n_q, other=0.0)[None, :]
    along = tl.load(coefficients + 2 * queries + q, mask=q < n_q, other=0.0)[None, :]
    at = c[:, None] * queries + q[None, :]
    inside = (c < n_c)[:, None] & (q < n_q)[None, :]
    w = tl.load(weights + at, mask=inside, other=0.0)
    turned = of_square * tl.load(attended + at, mask=inside, other=0.0)
    made = w * (of_product + lambda_softmax * (of_product * cosines + turned - along))
    return made, w * turned, cosines


@triton.jit(
    do_not_specialize=["n_own", "n_others", "rows", "own_stride", "other_stride"],
    do_not_specialize_on_alignment=["lengths"],
)
def normalised_row_gradients(
    normal, grads, multiples, deviations, gain, shift, lengths, of_gain, of_shift, n_own, n_others, rows, own_stride,
    other_stride, KIND: tl.constexpr,
):  # fmt: skip
    """∂L/∂ a row ahead of its normalisation, in place of the normalised one, in all pairs; sums of gain and shift."""
    D: tl.constexpr = KIND.D
    row = tl.program_id(0).to(tl.int64)
    own = row // rows
    exists = row % rows < tl.load(lengths + own)
    d = tl.arange(0, KIND.WIDTH)
    scale = tl.load(gain + d, mask=d < D, other=0.0)[None, :]
    moved = tl.load(shift + d, mask=d < D, other=0.0)[None, :]
    gains = tl.full((KIND.WIDTH,), 0, tl.float32)
    shifts = tl.full((KIND.WIDTH,), 0, tl.float32)
    for first in range(0, n_others, KIND.PAIRS):
        others = (first + tl.arange(0, KIND.PAIRS)).to(tl.int64)
        valid = others < tl.where(exists, n_others, 0)
        inside = valid[:, None] & (d < D)[None, :]
        pairs = own * own_stride + others * other_stride + row % rows
        at = normal + (others * n_own * rows + row)[:, None] * D + d[None, :]
        x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(grads + pairs[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
        multiple = tl.load(multiples + pairs, mask=valid, other=0.0)
        dy = tl.where(inside, dy + multiple[:, None] * (x * scale + moved), 0.0)
        gains += tl.sum(dy * x, 0)
        shifts += tl.sum(dy, 0)
        dx = dy * scale
        dx = dx - tl.sum(dx, 1)[:, None] / D - x * (tl.sum(dx * x, 1)[:, None] / D)
        deviation = tl.load(deviations + pairs, mask=valid, other=1.0)
        made = tl.where(exists, dx / deviation[:, None], 0.0).to(normal.dtype.element_ty)
        tl.store(at, made, mask=(others < n_others)[:, None] & (d < D)[None, :])
    tl.store(of_gain + row * D + d, gains, mask=d < D)
    tl.store(of_shift + row * D + d, shifts, mask=d < D)


@triton.jit(do_not_specialize=["n_own", "n_others", "rows", "keys"])
def cross_logit_gradients(
    weights, own_weights, grads, own_grads, logits, own_logits, factor, n_own, n_others, rows, keys, KIND: tl.constexpr
):  # fmt: skip
    """∂L/∂logits of a tile of rows with an other item's keys, and with their own item, through the softmax of both."""
    ROWS: tl.constexpr = KIND.ROWS
    head, other, r, valid = tile_of_logits(rows, keys, n_own, n_others, KIND)
    total_rows = n_own.to(tl.int64) * rows
    row = other * total_rows + r
    own = tl.load(own_weights + row * KIND.HEADS + head, mask=valid, other=0.0)
    of_own = tl.load(own_grads + row * (KIND.HEADS + 1) + head, mask=valid, other=0.0)
    at = (row * KIND.HEADS + head)[:, None] * keys
    along = own * of_own
    for first in range(0, keys, ROWS):
        k = first + tl.arange(0, ROWS)
        inside = valid[:, None] & (k < keys)[None, :]
        w = tl.load(weights + at + k[None, :], mask=inside, other=0.0).to(tl.float32)
        along += tl.sum(w * tl.load(grads + at + k[None, :], mask=inside, other=0.0), 1)
    tl.store(own_logits + row * KIND.HEADS + head, own * (of_own - along), mask=valid)
    to = logits + ((head * total_rows + r) * n_others + other)[:, None] * keys
    for first in range(0, keys, ROWS):
        k = first + tl.arange(0, ROWS)
        inside = valid[:, None] & (k < keys)[None, :]
        w = tl.load(weights + at + k[None, :], mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grads + at + k[None, :], mask=inside, other=0.0)
        made = factor * w * (grad - along[:, None])
        tl.store(to + k[None, :], made.to(logits.dtype.element_ty), mask=inside)


class _LayerGradients:
    """Sums of a call's gradients, of each side the first five fields of `LayerSide`."""

    def __init__(self, call: LayerCall) -> None:
        self.call = call
        self.sides = [[torch.zeros_like(x, dtype=torch.float32) for x in side[:5]] for side in call.sides]
        self.gain, self.shift = torch.zeros_like(call.gain), torch.zeros_like(call.shift)

    def add(self, part: PairPart, grads: Tensor) -> None:
        """Gradients from those of a part's scores."""
        call, images, captions = self.call, part.images, part.captions
        made = attend(call, part, torch.empty_like(grads))
        of_rows, multiples = self._matching(part, grads, made)
        n_captions = captions[1] - captions[0]
        for side, (mine, others) in enumerate(((images, captions), (captions, images))):
            n_own, n_others, rows = mine[1] - mine[0], others[1] - others[0], call.sides[side].rows
            strides = (n_captions * rows, rows) if side == 0 else (rows, n_captions * rows)
            self._layer(side, mine, others, (n_own, n_others, rows, *strides), of_rows[side], multiples[side], made)

    def _matching(self, part: PairPart, grads: Tensor, made: LayerState) -> tuple[list[Tensor], list[Tensor]]:
        """∂L/∂matched rows, less a multiple of each row, and these multiples; images first."""
        call, multiples = self.call, [torch.zeros_like(side.squares) for side in made.sides]
        parts = [side.part(*where) for side, where in zip(call.sides, part, strict=True)]
        (contexts, queries), (c, q) = parts[:: call.order], made.sides[:: call.order]
        coefficients = call.gain.new_empty(3 * len(q.squares))
        of_part = grads[part.images[0] :, part.captions[0] :]
        call.run(
            matching_gradients, len(made.products), made.products, made.grams, c.squares, q.squares, contexts.lengths,
            queries.lengths, *made.matching, coefficients, of_part, *multiples[:: call.order], call.lambda_softmax,
            call.lambda_lse, parts[1].items, contexts.rows, queries.rows, grads.stride(0),
        )  # fmt: skip
        products, grams = (x.to(call.dtype) for x in (made.products, made.grams))
        of_contexts = torch.baddbmm(torch.bmm(products, q.rows), grams, c.rows)
        return [of_contexts, torch.bmm(products.mT, c.rows)][:: call.order], multiples

    def _layer(
        self, side: int, mine: tuple[int, int], others: tuple[int, int], sizes: tuple[int, ...], of_rows: Tensor,
        multiples: Tensor, made: LayerState,
    ) -> None:  # fmt: skip
        """Through the normalisation and the attention of one side's rows."""
        call, (n_own, n_others, rows, *_strides) = self.call, sizes
        own, other = call.sides[side].part(*mine), call.sides[1 - side].part(*others)
        weights, own_weights, across, _rows, _squares, deviations = made.sides[side]
        heads, keys = call.kind.HEADS, other.keys.size(2)
        of_gain, of_shift = (call.gain.new_empty(n_own * rows, call.kind.D) for _ in range(2))
        call.run(
            normalised_row_gradients, n_own * rows, across, of_rows, multiples, deviations, call.gain,
            call.shift, own.lengths, of_gain, of_shift, *sizes,
        )  # fmt: skip
        self.gain += of_gain.sum(0)
        self.shift += of_shift.sum(0)
        queries, _, _, own_values, own_logits = (self._of(side, field, mine) for field in range(5))
        _, of_keys, of_values, _, _ = (self._of(1 - side, field, others) for field in range(5))
        # The own item: a product for each row, of all other items' gradients.
        by_rows = across.transpose(0, 1)
        own_grads = call.product(by_rows, own.own_values.flatten(0, 1).to(call.dtype).mT).transpose(0, 1).contiguous()
        shares = torch.nn.functional.pad(own_weights, (0, 1), value=1.0).to(call.dtype)
        own_values += call.product(shares.permute(1, 2, 0), by_rows).view(own_values.shape)
        # The other items.
        grads = call.product(across, other.values.mT)
        of_values += call.product(weights.flatten(2).mT, across)
        logits = weights.new_empty(heads, n_own * rows, n_others * keys)
        of_own_logits = torch.empty_like(own_weights)
        blocks = -(-n_own * rows // call.kind.ROWS)
        call.run(
            cross_logit_gradients, blocks * n_others * heads, weights, own_weights, grads, own_grads, logits,
            of_own_logits, call.lambda_attention, n_own, n_others, rows, keys,
        )  # fmt: skip
        own_logits += of_own_logits.sum(0).view(own_logits.shape)
        queries += call.product(logits, other.keys.flatten(1, 2)).view(queries.shape)
        of_keys += call.product(logits.mT, own.queries.flatten(1, 2)).view(of_keys.shape)

    def _of(self, side: int, field: int, where: tuple[int, int]) -> Tensor:
        sums = self.sides[side][field]
        return sums[:, slice(*where)] if field < 2 else sums[slice(*where)]


def gradients(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """`crossret::heterogeneous_attention_triton_backward`: float32, of what is wanted; else empty."""
    operands, options, wanted = arguments[:14], arguments[14:21], arguments[21:]
    differentiable = [x for index, x in enumerate(operands) if index not in (5, 11)]
    if not grad.numel():
        return as_wanted(None, differentiable, wanted)
    call, grad = LayerCall(operands, options, store=True), grad.contiguous()
    sums = _LayerGradients(call)
    for part in call.parts():
        sums.add(part, grad)
    found: list[Tensor] = []
    for (queries, keys, values, own_values, own_logits), side in zip(sums.sides, call.sides, strict=True):
        values = values.unflatten(1, (call.kind.HEADS, side.keys.size(2))).transpose(1, 2)
        found += [queries.permute(1, 2, 0, 3), keys.permute(1, 2, 0, 3), values, own_logits, own_values]
    return as_wanted([*found, sums.gain, sums.shift], differentiable, wanted)
