"""Heterogeneous attention between the products of its parts, which PyTorch makes: softmax over the other item's keys,
the own item being one more, residual and layer normalisation in one pass, the matching of pairs by their Gram matrices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.attention import EPS
from crossret_kernels.gpu.planning import PairPart
from crossret_kernels.heterogeneous_attention.options import LAYER_NORM_EPS
from crossret_kernels.heterogeneous_attention.triton.call import LayerCall, LayerSide

FLOOR, NORM_EPS = tl.constexpr(EPS), tl.constexpr(LAYER_NORM_EPS)


@triton.jit
def tile_of_logits(rows, keys, n_own, n_others, KIND: tl.constexpr):
    """(The head and other item of a program, its rows of all own ones, which of these there are)."""
    blocks = tl.cdiv(n_own * rows, KIND.ROWS)
    head = tl.program_id(0) % KIND.HEADS
    block = tl.program_id(0) // KIND.HEADS % blocks
    other = (tl.program_id(0) // (KIND.HEADS * blocks)).to(tl.int64)
    r = block.to(tl.int64) * KIND.ROWS + tl.arange(0, KIND.ROWS)
    return head, other, r, r < n_own * rows


@triton.jit(do_not_specialize=["n_own", "n_others", "rows", "keys"], do_not_specialize_on_alignment=["lengths"])
def cross_weights(
    logits, own_logits, lengths, weights, own_weights, factor, n_own, n_others, rows, keys, KIND: tl.constexpr
):  # fmt: skip
    """Softmax of a tile of rows over an other item's keys and, as one key more, the own item."""
    ROWS: tl.constexpr = KIND.ROWS
    head, other, r, valid = tile_of_logits(rows, keys, n_own, n_others, KIND)
    total_rows = n_own.to(tl.int64) * rows
    count = tl.load(lengths + other)
    of_logits = logits + ((head * total_rows + r) * n_others + other)[:, None] * keys
    own = tl.load(own_logits + r * KIND.HEADS + head, mask=valid, other=0.0)
    most = own
    total = tl.full((ROWS,), 1.0, tl.float32)
    for first in range(0, keys, ROWS):
        k = first + tl.arange(0, ROWS)
        x = factor * tl.load(of_logits + k[None, :], mask=valid[:, None] & (k < keys)[None, :], other=0.0)
        x = tl.where((k < count)[None, :], x, -float("inf"))
        larger = tl.maximum(most, tl.max(tl.where(x == x, x, -float("inf")), 1))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(x - larger[:, None]), 1)
        most = larger
    row = other * total_rows + r
    tl.store(own_weights + row * KIND.HEADS + head, tl.exp(own - most) / total, mask=valid)
    to = weights + (row * KIND.HEADS + head)[:, None] * keys
    for first in range(0, keys, ROWS):
        k = first + tl.arange(0, ROWS)
        inside = valid[:, None] & (k < keys)[None, :]
        x = factor * tl.load(of_logits + k[None, :], mask=inside, other=0.0)
        x = tl.where((k < count)[None, :], x, -float("inf"))
        made = tl.exp(x - most[:, None]) / total[:, None]
        tl.store(to + k[None, :], made.to(weights.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["n_own", "n_others", "rows", "own_stride", "other_stride"],
    do_not_specialize_on_alignment=["lengths"],
)
def normalised_rows(
    across, own_values, own_weights, lengths, gain, shift, out, squares, deviations, n_own, n_others, rows, own_stride,
    other_stride, KIND: tl.constexpr,
):  # fmt: skip
    """A row's own item and query added to what it makes of some other items, and the layer normalisation of the sum.

    Zeros where the own item has no such row. The gradients' kernels want rows ahead of gain and shift, in place of what
    came across.
    """
    D: tl.constexpr = KIND.D
    HEADS: tl.constexpr = KIND.HEADS
    tiles = tl.cdiv(n_others, KIND.PAIRS)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    others = (tl.program_id(0) % tiles).to(tl.int64) * KIND.PAIRS + tl.arange(0, KIND.PAIRS)
    own = row // rows
    exists = row % rows < tl.load(lengths + own)
    valid = others < n_others
    d = tl.arange(0, KIND.WIDTH)
    inside = valid[:, None] & (d < D)[None, :]
    at = others * n_own * rows + row
    x = tl.load(across + at[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    of_own = own_values + row * ((HEADS + 1) * D) + d
    for head in tl.static_range(HEADS):
        weight = tl.load(own_weights + at * HEADS + head, mask=valid, other=0.0)
        x += weight[:, None] * tl.load(of_own + head * D, mask=d < D, other=0.0)[None, :]
    x += tl.load(of_own + HEADS * D, mask=d < D, other=0.0)[None, :]
    centred = tl.where(inside, x - tl.sum(tl.where(inside, x, 0.0), 1)[:, None] / D, 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 1) / D + NORM_EPS)
    normal = centred / deviation[:, None]
    made = (
        normal * tl.load(gain + d, mask=d < D, other=0.0)[None, :] + tl.load(shift + d, mask=d < D, other=0.0)[None, :]
    )
    made = tl.where(exists & inside, made, 0.0).to(out.dtype.element_ty)
    pairs = own * own_stride + others * other_stride + row % rows
    tl.store(out + pairs[:, None] * D + d[None, :], made, mask=inside)
    made = made.to(tl.float32)
    tl.store(squares + pairs, tl.sum(made * made, 1), mask=valid)
    if KIND.STORE:
        normal = tl.where(exists, normal, 0.0).to(across.dtype.element_ty)
        tl.store(across + at[:, None] * D + d[None, :], normal, mask=inside)
        tl.store(deviations + pairs, deviation, mask=valid)


@triton.jit
def inverse_lengths(squares, at, valid):
    """1 / ‖x‖ of some rows; 0 of zeros."""
    square = tl.load(squares + at, mask=valid, other=0.0)
    return tl.where(square == 0.0, 0.0, 1.0 / tl.sqrt(tl.where(square == 0.0, 1.0, square)))


@triton.jit
def tile_of_cosines(products, inverse_c, inverse_q, c, q, n_c, n_q, width):
    """(C, Q) of some contexts and queries."""
    inside = (c < n_c)[:, None] & (q < n_q)[None, :]
    x = tl.load(products + c[:, None] * width + q[None, :], mask=inside, other=0.0)
    return x * inverse_c[:, None] * inverse_q[None, :]


@triton.jit
def pair_of(lengths_c, lengths_q, n_captions, KIND: tl.constexpr):
    """(A program's pair, its contexts and its queries)."""
    pair = tl.program_id(0).to(tl.int64)
    image, caption = pair // n_captions, pair % n_captions
    of_c, of_q = (image, caption) if KIND.T2I else (caption, image)
    return pair, tl.load(lengths_c + of_c).to(tl.int32), tl.load(lengths_q + of_q).to(tl.int32)


@triton.jit(
    do_not_specialize=["n_captions", "contexts", "queries", "score_stride"],
    do_not_specialize_on_alignment=["lengths_c", "lengths_q", "scores"],
)
def matched_pairs(
    products, grams, squares_c, squares_q, lengths_c, lengths_q, weights, attended, relevances, scores, lambda_softmax,
    lambda_lse, n_captions, contexts, queries, score_stride, KIND: tl.constexpr,
):  # fmt: skip
    """A pair's queries attend to its contexts (HAN §3.3); ‖a‖ of their attended vectors a is by the Gram matrix."""
    ROWS: tl.constexpr = KIND.ROWS
    pair, n_c, n_q = pair_of(lengths_c, lengths_q, n_captions, KIND)
    products += pair * contexts * queries
    weights += pair * contexts * queries
    attended += pair * contexts * queries
    grams += pair * contexts * contexts
    squares_c += pair * contexts
    squares_q += pair * queries
    best = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0, tl.float32)
    for first_q in range(0, n_q, ROWS):
        q = first_q + tl.arange(0, ROWS)
        inverse_q = inverse_lengths(squares_q, q, q < n_q)
        most = tl.full((ROWS,), -float("inf"), tl.float32)
        sums = tl.full((ROWS,), 0, tl.float32)
        for first_c in range(0, n_c, ROWS):
            c = first_c + tl.arange(0, ROWS)
            inverse_c = inverse_lengths(squares_c, c, c < n_c)
            x = lambda_softmax * tile_of_cosines(products, inverse_c, inverse_q, c, q, n_c, n_q, queries)
            x = tl.where((c < n_c)[:, None], x, -float("inf"))
            larger = tl.maximum(most, tl.max(tl.where(x == x, x, -3.0e38), 0))
            sums = sums * tl.exp(most - larger) + tl.sum(tl.exp(x - larger[None, :]), 0)
            most = larger
        product = tl.full((ROWS,), 0, tl.float32)
        square = tl.full((ROWS,), 0, tl.float32)
        for first_c in range(0, n_c, ROWS):
            c = first_c + tl.arange(0, ROWS)
            inverse_c = inverse_lengths(squares_c, c, c < n_c)
            cosines = tile_of_cosines(products, inverse_c, inverse_q, c, q, n_c, n_q, queries)
            x = tl.where((c < n_c)[:, None], lambda_softmax * cosines, -float("inf"))
            w = tl.exp(x - most[None, :]) / sums[None, :]
            along = tl.full((ROWS, ROWS), 0, tl.float32)
            for other_c in tl.range(0, n_c, ROWS, num_stages=1):  # staged, its tiles would lie across the lanes
                o = other_c + tl.arange(0, ROWS)
                inverse_o = inverse_lengths(squares_c, o, o < n_c)
                gram = tile_of_cosines(grams, inverse_c, inverse_o, c, o, n_c, n_c, contexts)
                x = lambda_softmax * tile_of_cosines(products, inverse_o, inverse_q, o, q, n_c, n_q, queries)
                x = tl.where((o < n_c)[:, None], x, -float("inf"))
                other_w = tl.exp(x - most[None, :]) / sums[None, :]
                along = tl.dot(gram, other_w, along, input_precision=KIND.PRECISION)
            product += tl.sum(w * cosines, 0)
            square += tl.sum(w * along, 0)
            if KIND.STORE:
                at = c[:, None] * queries + q[None, :]
                inside = (c < n_c)[:, None] & (q < n_q)[None, :]
                tl.store(weights + at, w, mask=inside)
                tl.store(attended + at, along, mask=inside)
        length = tl.sqrt(tl.where(square < 0.0, 0.0, square))
        length = tl.where(inverse_q == 0.0, 0.0, length)
        divisor = tl.where(length < FLOOR, FLOOR, length)
        relevance = tl.where(length == 0.0, 0.0, product / divisor)
        if KIND.STORE:
            tl.store(relevances + pair * queries + q, relevance, mask=q < n_q)
        if KIND.POOLING == 0:
            x = tl.where(q < n_q, lambda_lse * relevance, -float("inf"))
            larger = tl.maximum(best, tl.max(tl.where(x == x, x, -3.0e38), 0))
            total = total * tl.exp(best - larger) + tl.sum(tl.exp(x - larger), 0)
            best = larger
        elif KIND.POOLING == 3:
            known = tl.where(q < n_q, relevance, -float("inf"))
            best = tl.maximum(best, tl.max(known, 0))
            total += tl.sum(tl.where(known == known, 0.0, known), 0)  # a NaN
        else:
            total += tl.sum(tl.where(q < n_q, relevance, 0.0), 0)
    if KIND.POOLING == 0:
        score = (best + tl.log(total)) / lambda_lse
    elif KIND.POOLING == 1:
        score = total / n_q.to(tl.float32)
    elif KIND.POOLING == 2:
        score = total
    else:
        score = best + total
    tl.store(scores + pair // n_captions * score_stride + pair % n_captions, score)


class RowState(NamedTuple):
    """State of one side's rows in a part's pairs, for gradients.

    Attributes:
        weights, own_weights: (n_other, n_own · L, H, K) and (n_other, n_own · L, H).
        across: (n_other, n_own · L, D), ahead of gain and shift.
        rows: (P, L, D), matched ones.
        squares, deviations: (P · L,), of rows, and of what they were normalised by.
    """

    weights: Tensor
    own_weights: Tensor
    across: Tensor
    rows: Tensor
    squares: Tensor
    deviations: Tensor


class LayerState(NamedTuple):
    """State of a part's pairs for gradients.

    Attributes:
        sides: of images and of captions.
        products, grams: of contexts with queries (P, C, Q), and with one another (P, C, C).
        matching: weights (P, C, Q), the Gram matrix times these, and relevances (P, Q).
    """

    sides: tuple[RowState, RowState]
    products: Tensor
    grams: Tensor
    matching: list[Tensor]


def attended_rows(call: LayerCall, own: LayerSide, other: LayerSide, strides: tuple[int, int]) -> RowState:
    """The rows of one side after the layer."""
    n_own, n_others, rows, keys = own.items, other.items, own.rows, other.keys.size(2)
    heads, dim = call.kind.HEADS, call.kind.D
    logits = call.product(own.queries.flatten(1, 2), other.keys.flatten(1, 2).mT)
    weights = own.queries.new_empty(n_others, n_own * rows, heads, keys)
    own_weights = call.gain.new_empty(n_others, n_own * rows, heads)
    blocks = -(-n_own * rows // call.kind.ROWS)
    call.run(
        cross_weights, blocks * n_others * heads, logits, own.own_logits, other.counts, weights, own_weights,
        call.lambda_attention, n_own, n_others, rows, keys,
    )  # fmt: skip
    across = torch.bmm(weights.flatten(2), other.values)
    out = torch.empty_like(across)
    squares, deviations = (call.gain.new_empty(n_own * n_others * rows) for _ in range(2))
    call.run(
        normalised_rows, n_own * rows * -(-n_others // call.kind.PAIRS), across, own.own_values, own_weights,
        own.lengths, call.gain, call.shift, out, squares, deviations, n_own, n_others, rows, *strides,
    )  # fmt: skip
    return RowState(weights, own_weights, across, out.view(-1, rows, dim), squares, deviations)


def attend(call: LayerCall, part: PairPart, scores: Tensor) -> LayerState:
    """Launches what makes a part's scores, and what gradients are made of; none of that is kept without `STORE`."""
    images, captions = (side.part(*where) for side, where in zip(call.sides, part, strict=True))
    sides = (
        attended_rows(call, images, captions, (captions.items * images.rows, images.rows)),
        attended_rows(call, captions, images, (captions.rows, captions.items * captions.rows)),
    )
    contexts, queries = (images, captions)[:: call.order]
    c, q = sides[:: call.order]
    products = call.product(c.rows, q.rows.mT)
    grams = call.product(c.rows, c.rows.mT)
    kept = [torch.empty_like(products) if call.kind.STORE else products for _ in range(2)]
    relevances = torch.empty_like(q.squares) if call.kind.STORE else products
    of_part = scores[part.images[0] :, part.captions[0] :]
    call.run(
        matched_pairs, len(products), products, grams, c.squares, q.squares, contexts.lengths,
        queries.lengths, *kept, relevances, of_part, call.lambda_softmax, call.lambda_lse, captions.items,
        contexts.rows, queries.rows, scores.stride(0),
    )  # fmt: skip
    return LayerState(sides, products, grams, [*kept, relevances])


def scores_of(*arguments: Any) -> Tensor:
    """`crossret::heterogeneous_attention_triton`: scores (n_images, n_captions), float32."""
    operands, options = arguments[:14], arguments[14:]
    scores = operands[0].new_empty(operands[0].size(0), operands[6].size(0))
    if scores.numel():
        call = LayerCall(operands, options, store=False)
        for part in call.parts():
            attend(call, part, scores)
    return scores
