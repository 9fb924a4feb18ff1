"""Attended vectors, weights and relevances of listed pairs in Triton: one program a pair, reading its rows twice.

Their gradients: ∂L/∂S of each pair first, then gradients of items, summed over their pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.pair import (
    K,
    PairCall,
    attention_gradients,
    context_rows,
    cosines,
    load_columns,
    pair_attention,
    pair_items,
    query_rows,
)
from crossret_kernels.cross_attention.triton.pooling import pool_gradients, pooled
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_tiles import inverse
from crossret_kernels.gpu.tuning import AttendedPairs

SIZES = ["D", "query_slots", "context_slots"]


@triton.jit(do_not_specialize=SIZES)
def attend_pairs(
    contexts, queries, pairs, scores, attended, weights, relevances, D, query_slots, context_slots, slope,
    setting, lambda_lse, empty_score, KIND: tl.constexpr,
):  # fmt: skip
    """Scores, attended vectors, weights and relevances of a pair."""
    pair = tl.program_id(0).to(tl.int64)
    context, query = pair_items(pairs, pair, KIND)
    c_rows, c_here, c_place, _ = context_rows(contexts, context, KIND)
    q_rows, q_here, q_place, _ = query_rows(queries, query, KIND)
    s, lengths, _q_scale, c_scale, _x, _factor, _n, p, _dp = pair_attention(
        contexts, queries, c_rows, c_here, q_rows, q_here, attended, q_rows, D, slope, setting, False, KIND
    )
    # Attended vectors by columns.
    scaled_p = tl.trans(p * c_scale[:, None])
    squares = tl.full((KIND.Q,), 0, tl.float32)
    q_mask = q_place < query_slots
    cells = (pair * query_slots + q_place) * D
    for d in range(0, D, K):
        x = load_columns(contexts.features, c_rows, c_here, d, D, KIND).to(tl.float32)
        a = tl.dot(scaled_p, x, input_precision=KIND.SECOND)
        squares += tl.sum(a * a, 1)
        if KIND.ATTENDED:
            k = d + tl.arange(0, K)
            inside = q_mask[:, None] if KIND.EVEN else q_mask[:, None] & (k < D)[None, :]
            tl.store(attended + cells[:, None] + k[None, :], tl.where(q_here[:, None], a, 0.0), mask=inside)
    # Relevances and score.
    r, _, _ = cosines(tl.sum(p * s, 0), squares, lengths)
    r = tl.where(q_here, r, 0.0)
    tl.store(relevances + pair * query_slots + q_place, r, mask=q_mask)
    cells = (pair * query_slots + q_place)[None, :] * context_slots + c_place[:, None]
    tl.store(weights + cells, p, mask=q_mask[None, :] & (c_place < context_slots)[:, None])
    there = (tl.max(c_here.to(tl.int32), 0) > 0) & (tl.max(q_here.to(tl.int32), 0) > 0)
    tl.store(scores + pair, tl.where(there, pooled(r, q_here, lambda_lse, KIND), empty_score))


def attend(*arguments: Any) -> tuple[Tensor, ...]:
    """`crossret::scan_attend_triton`: scores, attended vectors, weights and relevances."""
    call = PairCall(*arguments)
    count, (dim, queries, contexts) = call.pairs.size(0), call.sizes
    scores = call.pairs.new_empty(count, dtype=torch.float32)
    attended, weights, relevances = (
        scores.new_empty(count, queries, *last) for last in ((dim if call.kind.ATTENDED else 0,), (contexts,), ())
    )
    if count:
        out = scores, attended if call.kind.ATTENDED else scores, weights, relevances
        arguments = *call.layouts, call.pairs, *out, *call.sizes, *call.numbers
        launch(attend_pairs, (count, 1, 1), arguments, call.kind, call.key, call.warps)
    return scores, attended, weights, relevances


class ResultGradients(NamedTuple):
    """∂L/∂ the results, contiguous; any tensor in place of attended vectors where there are none."""

    scores: Tensor
    attended: Tensor
    weights: Tensor
    relevances: Tensor


class PairGradients(NamedTuple):
    """Numbers of some pairs that the gradients of their items are made of, float32.

    Attributes:
        similarities: (pairs, C, Q), ∂L/∂s.
        weights: (pairs, C, Q).
        contexts: (pairs, 2, C): the part of each context's gradient along its unit vector; the row's scale.
        queries: (pairs, 4, Q): the same two of queries; the factor of the attended vector in its gradient; the
            factor of the query in its gradient.
    """

    similarities: Tensor
    weights: Tensor
    contexts: Tensor
    queries: Tensor


@triton.jit
def norm_gradients(s, x, n, dn, mask, factor, slope, KIND: tl.constexpr):
    """∂L/∂s from ∂L/∂n, through the norm along queries and the clip."""
    if KIND.NORM == "softmax":
        return n * (dn - tl.sum(n * dn, 1)[:, None])
    dx = dn
    if KIND.NORM != "none":
        along = tl.sum(n * dn, 1)  # by n: squares of x may overflow
        if KIND.NORM == "l2norm":
            dx = dn - n * (along * inverse(tl.sqrt(tl.sum(n * n, 1))))[:, None]
        else:
            dx = dn - tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)) * along[:, None]
        dx = dx * factor[:, None]
    if KIND.CLIPS:
        dx = tl.where(s > 0, dx, dx * slope)
    return tl.where(mask, dx, 0.0)


@triton.jit(do_not_specialize=["first", *SIZES])
def pair_gradients(
    contexts, queries, pairs, result_grads, pair_grads, first, D, query_slots, context_slots, slope, setting,
    lambda_lse, KIND: tl.constexpr,
):  # fmt: skip
    """`PairGradients` of a pair."""
    pair = tl.program_id(0).to(tl.int64) + first
    context, query = pair_items(pairs, pair, KIND)
    c_rows, c_here, c_place, _ = context_rows(contexts, context, KIND)
    q_rows, q_here, q_place, _ = query_rows(queries, query, KIND)
    mask = c_here[:, None] & q_here[None, :]
    cells = (pair * query_slots + tl.where(q_here, q_place, 0)) * D
    ATTENDED: tl.constexpr = KIND.ATTENDED
    s, lengths, q_scale, c_scale, x, factor, n, p, dp = pair_attention(
        contexts, queries, c_rows, c_here, q_rows, q_here, result_grads.attended, cells, D, slope, setting, ATTENDED,
        KIND,
    )  # fmt: skip
    # Attended vectors, as in the forward pass.
    scaled_p = tl.trans(p * c_scale[:, None])
    squares = tl.full((KIND.Q,), 0, tl.float32)
    gram = tl.full((KIND.C, KIND.Q), 0, tl.float32)
    for d in range(0, D, K):
        rows = load_columns(contexts.features, c_rows, c_here, d, D, KIND).to(tl.float32)
        a = tl.dot(scaled_p, rows, input_precision=KIND.SECOND)
        squares += tl.sum(a * a, 1)
        gram = tl.dot(rows, tl.trans(a), gram, input_precision=KIND.SECOND)
    # Pooling and relevance.
    r, least, moves = cosines(tl.sum(p * s, 0), squares, lengths)
    r = tl.where(q_here, r, 0.0)
    dr = pool_gradients(r, q_here, tl.load(result_grads.scores + pair), lambda_lse, KIND)
    dr += tl.load(result_grads.relevances + pair * query_slots + q_place, mask=q_here, other=0.0)
    product = tl.where(q_here & (lengths * squares != 0), dr / least, 0.0)
    pull = tl.where(moves, dr * r * -1.0, 0.0)
    attended_factor = pull * inverse(squares)
    query_factor = pull * 0.0 if KIND.PROJECTS else pull * inverse(lengths * lengths)
    places = (pair * query_slots + q_place)[None, :] * context_slots + c_place[:, None]
    # Gradients by way of attended vectors; all others go through similarities.
    dp = (dp + gram * attended_factor[None, :]) * c_scale[:, None]
    along = p * dp
    dp += s * product[None, :] + tl.load(result_grads.weights + places, mask=mask, other=0.0)
    dn = attention_gradients(n, p, dp, mask, setting, KIND)
    ds = norm_gradients(s, x, n, dn, mask, factor, slope, KIND) + p * product[None, :]
    number = tl.program_id(0).to(tl.int64)
    c, q = tl.arange(0, KIND.C), tl.arange(0, KIND.Q)
    cells = number * (KIND.C * KIND.Q) + c[:, None] * KIND.Q + q[None, :]
    tl.store(pair_grads.similarities + cells, ds)
    tl.store(pair_grads.weights + cells, p)
    tl.store(pair_grads.contexts + number * (2 * KIND.C) + c, tl.sum(ds * s + along, 1))
    tl.store(pair_grads.contexts + number * (2 * KIND.C) + KIND.C + c, c_scale)
    query_numbers = pair_grads.queries + number * (4 * KIND.Q) + q
    tl.store(query_numbers, tl.sum(ds * s, 0) + query_factor * lengths * lengths)
    tl.store(query_numbers + KIND.Q, q_scale)
    tl.store(query_numbers + 2 * KIND.Q, attended_factor)
    tl.store(query_numbers + 3 * KIND.Q, query_factor)


@triton.jit(do_not_specialize=["first", "D", "query_slots"])
def sum_pairs(
    contexts, queries, pairs, order, borders, result_grads, pair_grads, out, first, D, query_slots, KIND: tl.constexpr
):  # fmt: skip
    """Adds the contributions of an item's pairs to some columns of its gradient, in the order of the pairs."""
    steps = tl.cdiv(D, K)
    item = (tl.program_id(0) // steps).to(tl.int64)
    d = tl.program_id(0) % steps * K
    begin, end = tl.load(borders + item), tl.load(borders + item + 1)
    c, q = tl.arange(0, KIND.C), tl.arange(0, KIND.Q)
    if KIND.OF_CONTEXTS:
        rows, here, place, first_place = context_rows(contexts, item, KIND)
    else:
        rows, here, place, first_place = query_rows(queries, item, KIND)
    here = here & (begin + 0 * place < end)  # an item without pairs is not read, as it may be NaN
    features = contexts.features if KIND.OF_CONTEXTS else queries.features
    x = load_columns(features, rows, here, d, D, KIND).to(tl.float32)
    sums = x * 0.0
    along = tl.sum(sums, 1)
    coefficient = along
    scale = along
    for index in range(begin, end):
        number = tl.load(order + index)
        pair = number + first
        context, query = pair_items(pairs, pair, KIND)
        cells = number * (KIND.C * KIND.Q) + c[:, None] * KIND.Q + q[None, :]
        ds = tl.load(pair_grads.similarities + cells)
        context_numbers = pair_grads.contexts + number * (2 * KIND.C) + c
        query_numbers = pair_grads.queries + number * (4 * KIND.Q) + q
        if KIND.OF_CONTEXTS:
            p = tl.load(pair_grads.weights + cells)
            q_rows, q_here, q_place, _ = query_rows(queries, query, KIND)
            other = load_columns(queries.features, q_rows, q_here, d, D, KIND).to(tl.float32)
            other = other * tl.load(query_numbers + KIND.Q)[:, None]
            sums = tl.dot(ds, other, sums, input_precision=KIND.SECOND)
            scale = tl.load(context_numbers + KIND.C)
            a = tl.dot(tl.trans(p * scale[:, None]), x, input_precision=KIND.SECOND)
            a = a * tl.load(query_numbers + 2 * KIND.Q)[:, None]
            if KIND.ATTENDED:
                grads = (pair * query_slots + tl.where(q_here, q_place, 0)) * D
                a += load_columns(result_grads.attended, grads, q_here, d, D, KIND)
            sums = tl.dot(p, a, sums, input_precision=KIND.SECOND)
            along += tl.load(context_numbers)
        else:
            c_rows, c_here, _, _ = context_rows(contexts, context, KIND)
            other = load_columns(contexts.features, c_rows, c_here, d, D, KIND).to(tl.float32)
            other = other * tl.load(context_numbers + KIND.C)[:, None]
            sums = tl.dot(tl.trans(ds), other, sums, input_precision=KIND.SECOND)
            scale = tl.load(query_numbers + KIND.Q)
            coefficient += tl.load(query_numbers + 3 * KIND.Q)
            along += tl.load(query_numbers)
    if KIND.NORMALIZE:  # gradient of x / ‖x‖: the part along x is taken out
        coefficient -= along
    sums += x * (scale * coefficient)[:, None]
    if KIND.NORMALIZE:
        sums = sums * scale[:, None]
    k = d + tl.arange(0, K)
    cells = out + (first_place + tl.where(here, place, 0))[:, None] * D + k[None, :]
    inside = here[:, None] if KIND.EVEN else here[:, None] & (k < D)[None, :]
    if first > 0:
        sums += tl.load(cells, mask=inside, other=0.0)
    tl.store(cells, sums, mask=inside)


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_attend_triton_backward`: gradients of regions and words, in their dtype, or empty."""
    call = PairCall(*arguments[4:-2])
    result_grads = ResultGradients(*(grad.contiguous() for grad in arguments[:4]))
    if not call.kind.ATTENDED:
        result_grads = result_grads._replace(attended=result_grads.scores)
    needs_regions, needs_words = arguments[-2:]
    needs = (needs_regions, needs_words) if not call.kind.COLUMN else (needs_words, needs_regions)
    count, dtype = call.pairs.size(0), call.sides[0].features.dtype
    c, q = call.kind.C, call.kind.Q
    chunk = max(1, AttendedPairs.CELL_BYTES // (8 * c * q))
    single = count <= chunk  # one launch sums all pairs, and rounds its sums
    options: dict[str, Any] = {"dtype": dtype if single else torch.float32, "memory_format": torch.contiguous_format}
    features = (side.features if needed else side.features[:0] for side, needed in zip(call.sides, needs, strict=True))
    results = [torch.zeros_like(x, **options) for x in features]
    sizes = (min(count, chunk), c, q), (min(count, chunk), c, q), (min(count, chunk), 2, c), (min(count, chunk), 4, q)
    pair_grads = PairGradients(*(torch.empty(size, dtype=torch.float32, device=call.pairs.device) for size in sizes))
    for first in range(0, count, chunk):
        pairs = call.pairs[first : first + chunk]
        pair_inputs = *call.layouts, call.pairs, result_grads, pair_grads, first, *call.sizes, *call.numbers[:3]
        launch(pair_gradients, (len(pairs), 1, 1), pair_inputs, call.kind, call.key, call.warps)
        for is_context in (True, False):
            place = int(not is_context)
            side, out = call.sides[place], results[place]
            if not needs[place] or not out.numel():
                continue
            items, order = pairs[:, call.kind.COLUMN if is_context else 1 - call.kind.COLUMN].sort(stable=True)
            borders = torch.searchsorted(items, torch.arange(side.n_items + 1, device=items.device))
            grid, kind = (side.n_items * -(-call.dim // K.value), 1, 1), call.kind._replace(OF_CONTEXTS=is_context)
            operands = *call.layouts, call.pairs, order, borders, result_grads, pair_grads, out, first, *call.sizes[:2]
            launch(sum_pairs, grid, operands, kind, (call.key, single), call.warps)
    grads = [(x if needed else x.new_empty(0)).to(dtype) for x, needed in zip(results, needs, strict=True)]
    return (grads[0], grads[1]) if not call.kind.COLUMN else (grads[1], grads[0])
