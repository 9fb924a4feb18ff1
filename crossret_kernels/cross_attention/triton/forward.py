"""Scores of stacked cross attention in Triton: similarities of a run are attended to and pooled, kernel by kernel."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import (
    CANCELLED,
    EPS,
    LOG2_E,
    MOST_COSINE,
    MOST_FACTOR,
    MOST_LOGIT,
    TINY,
    clip,
    context_weights,
    gram_block,
    membership,
    query_tile,
    row_lengths,
    wide,
)
from crossret_kernels.cross_attention.triton.call import Call
from crossret_kernels.cross_attention.triton.chunks import Run, runs_of
from crossret_kernels.triton_launch import launch
from crossret_kernels.triton_tiles import bounded, inverse, product

LN_2 = tl.constexpr(0.6931471805599453)
POOLED_CONTEXTS = tl.constexpr(16)  # items of contexts, and queries, that are pooled at a time
POOLED_QUERIES = tl.constexpr(32)
CONTEXTS_ABREAST = 8  # items of contexts that a program attends to, at most
PROGRAMS = 1024  # wanted of a launch, ahead of longer programs


def scores(*arguments: Any) -> Tensor:
    """`crossret::scan_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32."""
    call = Call.of(*arguments)
    out = torch.empty(call.shape, dtype=torch.float32, device=call.device)
    if out.numel():
        for run in runs_of(call):
            attend_to(run, pool_into=out)
    return out


def attend_to(run: Run, pool_into: Tensor | None = None) -> None:
    """Similarities, Gram matrices and relevances of a run; their scores, or what gradients are made of."""
    call, constants = run.call, run.constants
    launch(
        gram_matrices, (run.n_contexts, run.gram_blocks**2, 1), (run.contexts, run.grams, run.sizes), constants, 4
    )  # fmt: skip
    if not run.fused:
        run.multiply()
    if call.long:
        launch(
            query_statistics, (run.context_blocks, run.n_queries, 1),
            (run.similarities, run.contexts, run.queries, run.statistics, run.sizes, call.numbers), constants, 4,
        )  # fmt: skip
    abreast = 1 if call.pairs is not None else max(1, min(CONTEXTS_ABREAST, run.n_contexts * run.n_tiles // PROGRAMS))
    launch(
        attend, (run.n_tiles, 1 if call.pairs is not None else -(-run.n_contexts // abreast), 1),
        (run.similarities, call.plan.tiles, run.contexts, run.queries, run.grams, run.statistics, run.kept,
         run.sizes, call.numbers, abreast),
        constants if pool_into is not None else run.saving, 8 if call.tile >= 128 else 4,
    )  # fmt: skip
    if pool_into is not None:
        blocks = 1 if call.pairs is not None else -(-run.n_contexts // POOLED_CONTEXTS.value)
        launch(
            pool, (run.n_queries, blocks, 1),
            (run.kept, run.contexts, run.queries, pool_into, run.sizes, run.score_strides(pool_into), call.numbers),
            constants, 1,
        )  # fmt: skip


@triton.jit
def broken_item(side, first, count):
    """Whether one of an item's rows was not finite."""
    broken = tl.zeros((32,), tl.int32)
    for start in range(0, count, 32):
        r = start + tl.arange(0, 32)
        norms = tl.load(side.norms + first + r, mask=r < count, other=0.0)
        broken |= (norms != norms).to(tl.int32)
    return tl.max(broken)


@triton.jit(do_not_specialize=["sizes"])
def gram_matrices(
    contexts, grams, sizes,
    NORMALIZE: tl.constexpr, D: tl.constexpr, C: tl.constexpr, K: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """A block of an item's contexts' products with one another, (items, pitch, pitch) with zeros behind them.

    Says of the item too whether one of its rows was not finite.
    """
    item = tl.program_id(0)
    blocks = tl.cdiv(sizes.gram_pitch, C)
    r = tl.program_id(1) // blocks * C + tl.arange(0, C)
    c = tl.program_id(1) % blocks * C + tl.arange(0, C)
    first = tl.load(contexts.items + 2 * item)
    count = tl.load(contexts.items + 2 * item + 1)
    if tl.program_id(1) == 0:
        tl.store(contexts.broken + item, broken_item(contexts, first, count))
    last = first + tl.maximum(count - 1, 0)
    rows = tl.minimum(first + r, last)
    columns = tl.minimum(first + c, last)
    _, row_scales = row_lengths(contexts, rows, r < count, NORMALIZE)
    _, column_scales = row_lengths(contexts, columns, c < count, NORMALIZE)
    block = tl.zeros((C, C), tl.float32)
    if count > 0:
        block = product(
            contexts.rows, rows.to(tl.int64) * D, contexts.rows, columns.to(tl.int64) * D, D, C, C, K, True, MAIN
        )
    block = block * row_scales[:, None] * column_scales[None, :]
    pitch = sizes.gram_pitch
    cells = grams + wide(item) * pitch * pitch + r[:, None] * pitch + c[None, :]
    tl.store(cells, block, mask=(r < pitch)[:, None] & (c < pitch)[None, :])


@triton.jit(do_not_specialize=["sizes", "numbers"])
def query_statistics(
    S, contexts, queries, statistics, sizes, numbers,
    CLIPS: tl.constexpr, NORM: tl.constexpr, NORMALIZE: tl.constexpr, LISTED: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Of C rows of contexts and one item of queries what they are normalised by: (2, rows, items of queries).

    Their norms; for the softmax the sums of their exponentials and, in the second plane, the greatest of them.
    """
    item = tl.program_id(1)
    r = tl.program_id(0) * C + tl.arange(0, C)
    j = tl.arange(0, 32)
    first = tl.load(queries.items + 2 * item)
    count = tl.load(queries.items + 2 * item + 1)
    if LISTED:
        r += item * sizes.context_slots
        there = r < (item + 1) * sizes.context_slots
        column = 0
    else:
        there = r < sizes.context_rows
        column = first
    _, scales = row_lengths(contexts, r, there, NORMALIZE)
    cells = S + wide(r)[None, :] * (sizes.pitch * 16) + column + j[:, None]
    greatest = tl.full((C,), float("-inf"), tl.float32)
    sums = tl.zeros((C,), tl.float32)
    for step in tl.static_range(2 if NORM == "softmax" else 1):
        for start in range(0, count, 32):
            inside = (start + j < count)[:, None] & there[None, :]
            _, query_scales = row_lengths(queries, first + start + j, start + j < count, NORMALIZE)
            s = tl.load(cells + start, mask=inside, other=0.0)
            if NORMALIZE:
                s = s * query_scales[:, None] * scales[None, :]
            x = clip(s, numbers.slope, CLIPS)
            if NORM != "softmax":
                sums += tl.sum(tl.abs(x) if NORM == "l1norm" else x * x, 0)
            elif step == 0:
                greatest = tl.maximum(greatest, tl.max(tl.where(inside, x, float("-inf")), 0))
            else:
                sums += tl.sum(tl.where(inside, tl.exp2((x - greatest[None, :]) * LOG2_E), 0.0), 0)
    if NORM != "softmax" and NORM != "l1norm":
        sums = tl.sqrt(sums)
    places = statistics + wide(r) * sizes.n_queries + item
    tl.store(places, sums, mask=there)
    tl.store(places + sizes.plane, greatest, mask=there)


@triton.jit
def attended_vectors(
    S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, shift, members, query_lengths,
    query_scales,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, NORMALIZE: tl.constexpr, LONG: tl.constexpr,
    WIDE: tl.constexpr, FUSED: tl.constexpr, D: tl.constexpr, N: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """q·a and ‖a‖² (N,) from the vectors a = Σ p c themselves, K columns at a time."""
    j = tl.arange(0, N)
    k = tl.arange(0, K)
    rows = (tile[2] + tl.minimum(j, tl.maximum(tile[3] - 1, 0))).to(tl.int64)
    products = tl.zeros((N,), tl.float32)
    squares = tl.zeros((N,), tl.float32)
    for d in range(0, D, K):
        attended = tl.zeros((N, K), tl.float32)
        for start in range(0, context[1] if WIDE else 1, C):
            _, _, _, p, _, scales = context_weights(
                S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, start, shift, members,
                query_lengths, query_scales,
                CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
            )  # fmt: skip
            c = context[0] + tl.minimum(start + tl.arange(0, C), context[1] - 1)
            cells = contexts.rows + c.to(tl.int64)[:, None] * D + d + k[None, :]
            attended = tl.dot(p * scales[None, :], tl.load(cells).to(tl.float32), attended, input_precision=FINE)
        q = tl.load(queries.rows + rows[:, None] * D + d + k[None, :]).to(tl.float32)
        products += tl.sum(attended * q, 1)
        squares += tl.sum(attended * attended, 1)
    return products * query_scales, squares


@triton.jit
def least_length(lengths, totals):
    """The cosine's denominator: ‖q‖‖a‖ or its floor, scaled by the Σp that the attended vectors lack; above 0."""
    return tl.maximum(tl.maximum(lengths, totals * EPS), TINY)


@triton.jit(do_not_specialize=["sizes", "numbers", "abreast"])
def attend(
    S, tiles, contexts, queries, grams, statistics, kept, sizes, numbers, abreast,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, NORMALIZE: tl.constexpr, LISTED: tl.constexpr,
    LONG: tl.constexpr, WIDE: tl.constexpr, FUSED: tl.constexpr, SAVE: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, K: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Relevances r of a tile of queries to `abreast` items of contexts, (items, rows) in the first plane of `kept`.

    With SAVE what gradients are made of, in further planes: with g = ∂L/∂r, ∂L/∂(q·a) is g times the second, twice
    ∂L/∂‖a‖² −g times the third, the mean that the softmax takes out of ∂L/∂p g times the fourth; the fifth is the
    greatest logit, where it is taken out.
    """
    tile = query_tile(tl.program_id(0), tiles, queries, sizes, N, LONG, LISTED)
    first_item, n_items, row, n_rows, _ = tile
    j = tl.arange(0, N)
    members = membership(row + j, queries, first_item, n_items, G)
    query_lengths, query_scales = row_lengths(queries, row + j, j < n_rows, NORMALIZE)
    if LISTED:
        begin = first_item
        end = first_item + (n_rows > 0).to(tl.int32)
    else:
        begin = tl.program_id(1) * abreast
        end = tl.minimum(begin + abreast, sizes.n_contexts)
    for item in range(begin, end):
        context = tl.load(contexts.items + 2 * item), tl.load(contexts.items + 2 * item + 1)
        count = context[1]
        shift = tl.zeros((N,), tl.float32)
        if SHIFTED:
            greatest = tl.full((N,), float("-inf"), tl.float32)
            for start in range(0, count if WIDE else 1, C):
                _, n, _, _, _, _ = context_weights(
                    S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, start, shift, members,
                    query_lengths, query_scales,
                    CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
                )  # fmt: skip
                logits = bounded(n * numbers.lambda_softmax, MOST_LOGIT)
                inside = (start + tl.arange(0, C) < count)[None, :]
                greatest = tl.maximum(greatest, tl.max(tl.where(inside, logits, float("-inf")), 1))
            shift = greatest
        products = tl.zeros((N,), tl.float32)
        totals = tl.zeros((N,), tl.float32)
        squares = tl.zeros((N,), tl.float32)
        orthogonal = tl.zeros((N,), tl.float32)
        for start in range(0, count if WIDE else 1, C):
            s, _, _, p, lengths, _ = context_weights(
                S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, start, shift, members,
                query_lengths, query_scales,
                CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
            )  # fmt: skip
            weighted = tl.dot(p, gram_block(grams, item, sizes.gram_pitch, start, start, C), input_precision=FINE)
            for other in range(start + C, count if WIDE else 0, C):  # off the diagonal all stands twice
                _, _, _, others, _, _ = context_weights(
                    S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, other, shift, members,
                    query_lengths, query_scales,
                    CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
                )  # fmt: skip
                block = gram_block(grams, item, sizes.gram_pitch, other, start, C) * 2.0
                weighted = tl.dot(others, block, weighted, input_precision=FINE)
            products += tl.sum(p * s, 1)
            totals += tl.sum(p, 1)
            squares += tl.sum(p * weighted, 1)
            p = p * lengths[None, :]
            orthogonal += tl.sum(p * p, 1)
        of_grams = squares
        of_similarities = products
        cancelled = (squares < orthogonal * CANCELLED) & (query_lengths != 0)
        if tl.max(cancelled.to(tl.int32)) > 0:
            attended, lengths_of_them = attended_vectors(
                S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, shift, members,
                query_lengths, query_scales,
                CLIPS, NORM, SHIFTED, NORMALIZE, LONG, WIDE, FUSED, D, N, C, K, MAIN, FINE,
            )  # fmt: skip
            products = tl.where(cancelled, attended, products)
            squares = tl.where(cancelled, lengths_of_them, squares)
        squares = tl.maximum(squares, 0.0)
        lengths = query_lengths * tl.sqrt(squares)
        cosines = bounded(products / least_length(lengths, totals), MOST_COSINE)
        relevances = tl.where(lengths != 0, cosines, 0.0)
        places = kept + wide(item) * sizes.kept_pitch + row + j
        tl.store(places, relevances, mask=j < n_rows)
        if SAVE:
            # ∂L/∂(Σp), which the cosine's floor brings, is the same for all contexts of a query: the softmax drops it.
            of_products = tl.where(lengths != 0, 1.0 / least_length(lengths, totals), 0.0)
            of_products = tl.minimum(of_products, MOST_FACTOR)
            moves = (lengths != 0) & (lengths >= totals * EPS) & (squares > 0)
            of_squares = tl.where(moves, relevances / tl.maximum(squares, TINY), 0.0)
            of_squares = bounded(of_squares, MOST_FACTOR)
            # The softmax takes out the mean. It is zero but for rounding, which λ and long features would blow up.
            mean = (of_products * of_similarities - of_squares * of_grams) * inverse(totals)
            tl.store(places + sizes.kept_plane, of_products, mask=j < n_rows)
            tl.store(places + 2 * sizes.kept_plane, of_squares, mask=j < n_rows)
            tl.store(places + 3 * sizes.kept_plane, mean, mask=j < n_rows)
            if SHIFTED:
                tl.store(places + 4 * sizes.kept_plane, shift, mask=j < n_rows)


@triton.jit
def pooled_relevances(cells, items, count, lambda_lse, POOLING: tl.constexpr):
    """(scores (items,); their exponentials' sums and greatest relevances, of "lse"): SCAN Eqs. 5–8."""
    j = tl.arange(0, POOLED_QUERIES)
    greatest = tl.full((POOLED_CONTEXTS,), float("-inf"), tl.float32)
    sums = tl.zeros((POOLED_CONTEXTS,), tl.float32)
    for start in range(0, count, POOLED_QUERIES):
        inside = items[:, None] & (start + j < count)[None, :]
        r = tl.load(cells + start, mask=inside, other=0.0)
        sums += tl.sum(r, 1)
        greatest = tl.maximum(greatest, tl.max(tl.where((start + j < count)[None, :], r, float("-inf")), 1))
    scores = sums
    if POOLING == "avg":
        scores = sums / tl.maximum(count, 1).to(tl.float32)
    if POOLING == "max":
        scores = greatest
    if POOLING == "lse":
        sums = tl.zeros((POOLED_CONTEXTS,), tl.float32)
        for start in range(0, count, POOLED_QUERIES):
            inside = items[:, None] & (start + j < count)[None, :]
            r = tl.load(cells + start, mask=inside, other=0.0)
            e = tl.exp2(lambda_lse * (r - greatest[:, None]) * LOG2_E)
            sums += tl.sum(tl.where((start + j < count)[None, :], e, 0.0), 1)
        scores = tl.log2(tl.maximum(sums, 1.0)) * LN_2 / lambda_lse + greatest
    return scores, sums, greatest


@triton.jit
def score_places(query, block, lane, sizes, strides, LISTED: tl.constexpr):
    """(Items of contexts from `block` on, which of them there are, where their scores with an item of queries stand).

    A listed pair has its own items only.
    """
    if LISTED:
        return query + lane, lane == 0, (strides.first + wide(query + lane)) * strides.context
    item = block + lane
    places = (strides.first_context + wide(item)) * strides.context
    return item, item < sizes.n_contexts, places + (strides.first_query + wide(query)) * strides.query


@triton.jit(do_not_specialize=["sizes", "strides", "numbers"])
def pool(
    kept, contexts, queries, scores, sizes, strides, numbers, POOLING: tl.constexpr, LISTED: tl.constexpr
):  # fmt: skip
    """Scores of an item of queries and some items of contexts, or of a listed pair."""
    query = tl.program_id(0)
    first = tl.load(queries.items + 2 * query)
    count = tl.load(queries.items + 2 * query + 1)
    lane = tl.arange(0, POOLED_CONTEXTS)
    item, inside, places = score_places(query, tl.program_id(1) * POOLED_CONTEXTS, lane, sizes, strides, LISTED)
    cells = kept + (wide(item) * sizes.kept_pitch + first)[:, None] + tl.arange(0, POOLED_QUERIES)[None, :]
    found, _, _ = pooled_relevances(cells, inside, count, numbers.lambda_lse, POOLING)
    counts = tl.load(contexts.items + 2 * item + 1, mask=inside, other=1)
    broken = tl.load(contexts.broken + item, mask=inside, other=0)
    found = tl.where((broken + broken_item(queries, first, count)) > 0, float("nan"), found)
    found = tl.where((counts == 0) | (count == 0), numbers.empty_score, found)
    tl.store(scores + places, found, mask=inside)
