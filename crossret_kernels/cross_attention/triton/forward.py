"""Scores of stacked cross attention in Triton: similarities of a run are attended to and pooled, kernel by kernel."""

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import (
    EPS,
    LOG2_E,
    MOST_LOGIT,
    OF_PRODUCTS,
    OF_SQUARES,
    SHIFT,
    clip,
    context_scales,
    context_weights,
    gram_cells,
    item_of,
    normalised,
    query_tile,
    row_lengths,
    rows_within,
    similarities,
    weighted_grams,
    wide,
)
from crossret_kernels.cross_attention.triton.call import STEP, Call, replaced
from crossret_kernels.cross_attention.triton.chunks import Run, listed_runs, planned_runs, run_in, saved_of, whole_of
from crossret_kernels.cross_attention.triton.pooling import BROKEN, POOLED_CONTEXTS, broken_item, pool
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_tiles import bounded, inverse, product, shown
from crossret_kernels.gpu.tuning import Attention

MOST_COSINE = tl.constexpr(2.0)
MOST_FACTOR = tl.constexpr(1e30)  # of gradients' factors, so that 0/1 products meet no 0 × ∞
TINY = tl.constexpr(1.1754944e-38)  # the least float32 of full precision
# Below this part τ of what orthogonal contexts would make it, Σp²‖c‖², pᵀGp is a small difference of large terms. G is
# off by some u √(D / v) ‖c‖² where v sums of D / v products are added up: ‖a‖² by that over τ, the cosine by half of
# it, which the tolerance, 32 u at least, allows down to 1/16 at D = 1024 and v = 8.
CANCELLED = tl.constexpr(0.125)
MAY_CANCEL = tl.constexpr(2)  # what is told of an item of contexts beside BROKEN
MENDED = tl.constexpr(Attention.MENDED)


def scores(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32; what gradients can be
    made of, empty where it is not asked for, and where scores come in several parts.
    """
    call, save = Call(*arguments[:-1]), arguments[-1]
    out = torch.empty(call.shape, dtype=torch.float32, device=call.form.device)
    saved = None
    if not call.filled:
        out.fill_(call.form.numbers.empty_score)
    elif 0 not in call.shape:
        if call.pairs is not None:
            score(listed_runs(call, Attention.LISTED_BYTES), out)
        elif (layout := whole_of(call)) is None:
            score(planned_runs(call), out)
        else:
            saved = saved_of(layout)
            score([run_in(saved, call, layout, pack=True)], out, save)
    return out, saved if save and saved is not None else out.new_empty(0)


def score(runs: Iterable[Run], out: Tensor, save: bool = False) -> None:
    """Scores of all runs."""
    for run in runs:
        attend_to(run, save)
        contexts, queries = run.layout.parts
        form = contexts.form
        grid = queries.n_items, 1 if form.listed else -(-contexts.n_items // POOLED_CONTEXTS.value), 1
        launch(pool, grid, (run.inputs, out, run.score_strides(out)), form.kind, form.key, warps=1)
        del run  # whose memory the next one takes


def attend_to(run: Run, save: bool) -> None:
    """Similarities, Gram matrices and relevances of a run and, to be saved, what gradients are made of."""
    form, layout, arguments = run.call.form, run.layout, (run.inputs,)
    launch(gram_matrices, layout.of_grams, arguments, form.kind, form.key)
    multiply(run)
    for mend in (False, True):
        kind = replaced(form.kind, SAVE=save, MEND=mend)
        registers = None if mend else Attention.registers(form.block, layout.warps)
        launch(attend, layout.grid, arguments, kind, form.key, layout.warps, registers)


def multiply(run: Run) -> None:
    """Similarities of a run, and what those of long queries are normalised by."""
    run.multiply()
    form = run.call.form
    if form.long:
        launch(query_statistics, run.layout.of_statistics, (run.inputs,), form.kind, form.key)


@triton.jit(do_not_specialize=["run"])
def gram_matrices(run, KIND: tl.constexpr):
    """A block of an item's contexts' products with one another, (items, pitch, pitch) with zeros behind them.

    Says of the item too whether one of its rows was not finite, and whether vectors that attend to it may cancel.
    """
    MAIN: tl.constexpr = KIND.MAIN
    K: tl.constexpr = KIND.K
    C: tl.constexpr = KIND.C
    item = tl.program_id(0)
    row = tl.program_id(1) // shown(run.sizes.gram_blocks) * C
    column = tl.program_id(1) % shown(run.sizes.gram_blocks) * C
    r, c = row + tl.arange(0, C), column + tl.arange(0, C)
    first, count = item_of(run.contexts, item)
    rows, columns = rows_within(first, r, count), rows_within(first, c, count)
    row_norms, row_scales = row_lengths(run.contexts, rows, r < count, KIND)
    column_norms, column_scales = row_lengths(run.contexts, columns, c < count, KIND)
    block = tl.full((C, C), 0, tl.float32)
    of_rows, of_columns = rows.to(tl.int64) * KIND.D, columns.to(tl.int64) * KIND.D
    for part in range(0, KIND.D, STEP):  # sums of sums, which round less than one over all of D
        x = run.contexts.rows + part
        block += product(x, of_rows, x, of_columns, STEP, C, C, K, True, MAIN)
    block = tl.where((row_scales[:, None] != 0) & (column_scales[None, :] != 0), block, 0.0)
    block = block * row_scales[:, None] * column_scales[None, :]
    tl.store(gram_cells(run.grams, item, run, row, column, KIND), block)
    if tl.program_id(1) == 0:
        broken = broken_item(run.contexts, first, count)
        # By Gershgorin's circles pᵀGp is at least 1 − opposed of Σp²‖c‖², as no p is negative.
        cosines = block * inverse(row_norms)[:, None] * inverse(column_norms)[None, :]
        opposed = tl.max(tl.sum(tl.where(r[:, None] != c[None, :], tl.maximum(-cosines, 0.0), 0.0), 1))
        may_cancel = (opposed > 0.99 - CANCELLED) | (shown(run.sizes.gram_blocks) > 1)
        tl.store(run.contexts.items + 3 * item + 2, broken * BROKEN + may_cancel.to(tl.int32) * MAY_CANCEL)


@triton.jit(do_not_specialize=["run"])
def query_statistics(run, KIND: tl.constexpr):
    """Of C rows of contexts and one item of queries what they are normalised by: (2, rows, items of queries).

    Their norms; for the softmax the sums of their exponentials and, in the second plane, the greatest of them.
    """
    C: tl.constexpr = KIND.C
    item = tl.program_id(0)
    first, count = item_of(run.queries, item)
    r = tl.program_id(1) * C + tl.arange(0, C)
    there = r < shown(run.sizes.context_rows)
    place = r
    if KIND.LISTED:
        there = r < shown(run.sizes.context_slots)
        r += item * shown(run.sizes.context_slots)
    _lengths, scales = row_lengths(run.contexts, r, there, KIND)
    j = tl.arange(0, 32)
    pitch = shown(run.sizes.pitch) * 16
    cells = run.S + wide(first + j)[:, None] * pitch + place[None, :]
    greatest = tl.full((C,), float("-inf"), tl.float32)
    sums = tl.full((C,), 0, tl.float32)
    for step in tl.static_range(2 if KIND.NORM == "softmax" else 1):
        for start in range(0, count, 32):
            inside = (start + j < count)[:, None] & there[None, :]
            s = tl.load(cells + wide(start) * pitch, mask=inside, other=0.0)
            if KIND.NORMALIZE:
                _of_queries, query_scales = row_lengths(run.queries, first + start + j, start + j < count, KIND)
                s = s * query_scales[:, None] * scales[None, :]
            x = clip(s, run, KIND)
            if KIND.NORM != "softmax":
                sums += tl.sum(tl.abs(x) if KIND.NORM == "l1norm" else x * x, 0)
            elif step == 0:
                greatest = tl.maximum(greatest, tl.max(tl.where(inside, x, float("-inf")), 0))
            else:
                logits = (x - greatest[None, :]) * LOG2_E
                sums += tl.sum(tl.exp2(tl.where(inside, logits, float("-inf"))), 0)
    if KIND.NORM == "l2norm":
        sums = tl.sqrt(sums)
    places = run.statistics + wide(r) * shown(run.sizes.statistics_pitch) + (0 if KIND.LISTED else item)
    tl.store(places, sums, mask=there)
    tl.store(places + shown(run.sizes.plane), greatest, mask=there)


@triton.jit
def attended_vectors(run, tile, context, shift, KIND: tl.constexpr):
    """q·a and ‖a‖² (N,) from the vectors a = Σ p c themselves, some columns of features at a time."""
    N: tl.constexpr = KIND.N
    K: tl.constexpr = MENDED
    _first_item, _n_items, row, n_rows, _here, _members, _query_lengths, query_scales = tile
    k = tl.arange(0, K)
    rows = rows_within(row, tl.arange(0, N), n_rows).to(tl.int64)
    products = tl.full((N,), 0, tl.float32)
    squares = tl.full((N,), 0, tl.float32)
    for d in range(0, KIND.D, K):
        attended = tl.full((N, K), 0, tl.float32)
        for start in range(0, context[1] if KIND.WIDE else 1, KIND.C):
            s = similarities(run, tile, context, start, KIND)
            p, _n, _norms = context_weights(s, run, tile, context, start, shift, KIND)
            p = p * context_scales(run, context, start, KIND)[None, :]
            c = rows_within(context[0], start + tl.arange(0, KIND.C), context[1])
            x = tl.load(run.contexts.rows + c.to(tl.int64)[:, None] * KIND.D + d + k[None, :]).to(tl.float32)
            attended = tl.dot(p, x, attended, input_precision=KIND.FINE)
        q = tl.load(run.queries.rows + rows[:, None] * KIND.D + d + k[None, :]).to(tl.float32)
        products += tl.sum(attended * q, 1)
        squares += tl.sum(attended * attended, 1)
    return products * query_scales, squares


@triton.jit
def greatest_logits(run, tile, context, KIND: tl.constexpr):
    """Of every query the greatest λn of an item's contexts, (N,)."""
    N: tl.constexpr = KIND.N
    greatest = tl.full((N,), float("-inf"), tl.float32)
    for start in range(0, context[1] if KIND.WIDE else 1, KIND.C):
        x = clip(similarities(run, tile, context, start, KIND), run, KIND)
        n, _norms = normalised(x, run, tile, context, start, KIND)
        there = start + tl.arange(0, KIND.C) < context[1]
        logits = tl.where(there[None, :], bounded(n * run.numbers.lambda_softmax, MOST_LOGIT), float("-inf"))
        greatest = tl.maximum(greatest, tl.max(logits, 1))
    return greatest


@triton.jit
def attend_to_item(run, tile, item, flag, KIND: tl.constexpr):
    """Relevances of a tile of queries to an item of contexts; `flag` is told whether an attended vector cancels."""
    N: tl.constexpr = KIND.N
    _first_item, _n_items, row, _n_rows, here, _members, query_lengths, _query_scales = tile
    context = item_of(run.contexts, item)
    shift = greatest_logits(run, tile, context, KIND) if KIND.SHIFTED else tl.full((N,), 0, tl.float32)
    products = tl.full((N,), 0, tl.float32)
    totals = tl.full((N,), 0, tl.float32)
    squares = tl.full((N,), 0, tl.float32)
    orthogonal = tl.full((N,), 0, tl.float32)
    may_cancel = tl.load(run.contexts.items + 3 * item + 2) >= MAY_CANCEL
    for start in range(0, context[1] if KIND.WIDE else 1, KIND.C):
        s = similarities(run, tile, context, start, KIND)
        p, _n, _norms = context_weights(s, run, tile, context, start, shift, KIND)
        products += tl.sum(p * s, 1)
        totals += tl.sum(p, 1)
        squares += tl.sum(p * weighted_grams(run, tile, item, context, start, p, shift, KIND), 1)
        if may_cancel:
            c = start + tl.arange(0, KIND.C)
            rows = rows_within(context[0], c, context[1])
            lengths, _scales = row_lengths(run.contexts, rows, c < context[1], KIND)
            p = p * lengths[None, :]
            orthogonal += tl.sum(p * p, 1)
    cancelled = (squares < orthogonal * CANCELLED) & (query_lengths != 0)
    if KIND.MEND:
        attended_products, attended_squares = attended_vectors(run, tile, context, shift, KIND)
        products = tl.where(cancelled, attended_products, products)
        squares = tl.where(cancelled, attended_squares, squares)
    elif may_cancel:
        tl.store(flag, tl.max(cancelled.to(tl.float32)))
    else:
        tl.store(flag, 0.0)
    squares = tl.maximum(squares, 0.0)
    lengths = query_lengths * tl.sqrt(squares)
    # The cosine's denominator: ‖q‖‖a‖ or its floor, scaled by the Σp that the attended vectors lack.
    denominators = tl.maximum(tl.maximum(lengths, totals * EPS), TINY)
    relevances = tl.where(lengths != 0, bounded(products / denominators, MOST_COSINE), 0.0)
    places = run.kept + wide(item) * shown(run.sizes.kept_pitch) + row + tl.arange(0, N)
    tl.store(places, relevances, mask=here)
    if KIND.SAVE:
        # ∂L/∂(Σp), which the cosine's floor brings, is the same for all contexts of a query: the softmax drops it.
        of_products = tl.minimum(tl.where(lengths != 0, 1.0 / denominators, 0.0), MOST_FACTOR)
        moves = (lengths != 0) & (lengths >= totals * EPS) & (squares > 0)
        of_squares = bounded(tl.where(moves, relevances / tl.maximum(squares, TINY), 0.0), MOST_FACTOR)
        tl.store(places + OF_PRODUCTS * shown(run.sizes.kept_plane), of_products, mask=here)
        tl.store(places + OF_SQUARES * shown(run.sizes.kept_plane), of_squares, mask=here)
        if KIND.SHIFTED:
            tl.store(places + SHIFT * shown(run.sizes.kept_plane), shift, mask=here)


@triton.jit(do_not_specialize=["run"])
def attend(run, KIND: tl.constexpr):
    """Relevances r of a tile of queries to some items of contexts, (items, rows) in the first plane of `run.kept`.

    With SAVE what gradients are made of, in further planes: with g = ∂L/∂r, ∂L/∂(q·a) is g OF_PRODUCTS, twice
    ∂L/∂‖a‖² is −g OF_SQUARES, SHIFT is the greatest logit.

    A second pass, MEND, does again what has been flagged. In one the rare way would cost the usual one its registers:
    when that was counted for sm_90 it took 161 instructions a cell of S and spills in place of 116 and none.
    """
    number = tl.program_id(0)
    tile = query_tile(number, run, KIND)
    begin = tile[0] if KIND.LISTED else tl.program_id(1) * shown(run.sizes.abreast)
    end = begin + 1 if KIND.LISTED else tl.minimum(begin + shown(run.sizes.abreast), shown(run.sizes.n_contexts))
    for item in tl.range(begin, end, num_stages=1):
        flag = run.cancelled + number
        if not KIND.LISTED:
            flag += wide(item) * tl.num_programs(0)
        if KIND.MEND:
            if tl.load(flag) > 0:
                attend_to_item(run, tile, item, flag, KIND)
        else:
            attend_to_item(run, tile, item, flag, KIND)
