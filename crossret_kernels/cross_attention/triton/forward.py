"""Scores of stacked cross attention in Triton: a run's similarities, attention and pooling, kernel after kernel."""

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import (
    LEAST,
    LOWEST,
    MOST_LOGIT,
    OF_MEAN,
    SHIFT,
    clip,
    context_weights,
    contexts_of,
    gram_cells,
    int64,
    item_of,
    normalised,
    query_norms,
    query_tile,
    row_lengths,
    rows_within,
    similarities,
    store_relevances,
    weighted_grams,
)
from crossret_kernels.cross_attention.triton.call import AttentionCall, replaced
from crossret_kernels.cross_attention.triton.chunks import (
    LengthPlan,
    Run,
    listed_runs,
    planned_runs,
    run_in,
    single_part_of,
)
from crossret_kernels.cross_attention.triton.packing import STEP
from crossret_kernels.cross_attention.triton.pooling import NOT_FINITE, POOLED_CONTEXTS, has_nonfinite_row, pool
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_tiles import bounded, decoded, inverse, product
from crossret_kernels.gpu.tuning import Attention

# Ratio τ of ‖a‖² = pᵀGp to its value for orthogonal contexts, Σp²‖c‖², below which ‖a‖² is a small difference of large
# terms. G is off by some u √(D / v) ‖c‖² where v sums of D / v products are added up: ‖a‖² by that over τ, the cosine
# by half of it. The tolerance, at least 32 u, allows τ = 1/16 at D = 1024 and v = 8.
CANCELLED = tl.constexpr(0.125)
MAY_CANCEL = tl.constexpr(2)  # flag of an item of contexts beside NOT_FINITE


def scores(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32; tensors saved for
    gradients, empty where these are not wanted or scores come in several parts.
    """
    call, save = AttentionCall(*arguments[:-1]), arguments[-1]
    out = torch.empty(call.shape, dtype=torch.float32, device=call.spec.device)
    saved = None
    if not call.filled:
        out.fill_(call.spec.numbers.empty_score)
    elif 0 not in call.shape:
        runs: Iterable[Run]
        if call.pairs is not None:
            runs = listed_runs(call, Attention.LISTED_BYTES)
        elif (layout := single_part_of(call)) is not None:
            saved = out.new_empty(sum(layout.saved))
            runs = [run_in(saved, call, layout, computed=False)]
        else:
            plan = LengthPlan(call)
            runs = planned_runs(call, plan, plan.parts(gradients=False))
        for run in runs:
            attend_to(run, save and saved is not None)
            contexts, queries, spec = *run.layout.parts, call.spec
            grid = queries.n_items, 1 if spec.kind.LISTED else -(-contexts.n_items // POOLED_CONTEXTS.value), 1
            kind = replaced(
                spec.kind, SAVE=True
            )  # recomputed relevances are rare: one kernel saves theirs for all calls
            launch(pool, grid, (run.inputs, out, run.score_strides(out)), kind, spec.key)
            del run  # frees the memory that the next run takes
    return out, saved if save and saved is not None else out.new_empty(0)


def attend_to(run: Run, save: bool) -> None:
    """Similarities, Gram matrices and relevances of a run and, with `save`, tensors that gradients need."""
    spec, layout, arguments = run.call.spec, run.layout, (run.inputs,)
    launch(gram_matrices, layout.gram_grid, arguments, spec.kind, spec.key)
    run.multiply()
    if spec.kind.LONG:
        launch(query_statistics, layout.statistics_grid, arguments, spec.kind, spec.key)
    kind, registers = replaced(spec.kind, SAVE=save), Attention.registers(spec.kind.C, layout.warps)
    launch(attend, layout.grid, arguments, kind, spec.key, layout.warps, registers)


@triton.jit(do_not_specialize=["run"])
def gram_matrices(run, KIND: tl.constexpr):
    """A block of the products of an item's contexts with one another, (items, pitch, pitch), zeros behind the last.

    Also sets the item's flags: NOT_FINITE where a row was not, MAY_CANCEL where attended vectors may cancel; and the
    zeros behind S that kernels read.
    """
    MAIN: tl.constexpr = KIND.MAIN
    K: tl.constexpr = KIND.K
    C: tl.constexpr = KIND.C
    item = tl.program_id(0)
    row = tl.program_id(1) // decoded(run.sizes.gram_blocks) * C
    column = tl.program_id(1) % decoded(run.sizes.gram_blocks) * C
    r, c = row + tl.arange(0, C), column + tl.arange(0, C)
    first, count = item_of(run.contexts, item)
    rows, columns = rows_within(first, r, count), rows_within(first, c, count)
    row_norms, row_scales = row_lengths(run.contexts, rows, r < count, KIND)
    column_norms, column_scales = row_lengths(run.contexts, columns, c < count, KIND)
    block = tl.full((C, C), 0, tl.float32)
    row_offsets, column_offsets = rows.to(tl.int64) * KIND.D, columns.to(tl.int64) * KIND.D
    for part in range(0, KIND.D, STEP):  # sums of sums round less than one sum over D
        x = run.contexts.rows + part
        block += product(x, row_offsets, x, column_offsets, STEP, C, C, K, True, MAIN)
    block = tl.where((row_scales[:, None] != 0) & (column_scales[None, :] != 0), block, 0.0)
    block = block * row_scales[:, None] * column_scales[None, :]
    tl.store(gram_cells(run.grams, item, run, row, column, KIND), block)
    if (item == 0) & (tl.program_id(1) == 0):
        tl.store(run.S + decoded(run.sizes.cells) + tl.arange(0, C), tl.full((C,), 0, tl.float32))
    if tl.program_id(1) == 0:
        broken = has_nonfinite_row(run.contexts, first, count)
        # Gershgorin's circles: pᵀGp is at least (1 − opposed) Σp²‖c‖², as p ≥ 0.
        cosines = block * inverse(row_norms)[:, None] * inverse(column_norms)[None, :]
        opposed = tl.max(tl.sum(tl.where(r[:, None] != c[None, :], tl.maximum(-cosines, 0.0), 0.0), 1))
        may_cancel = (opposed > 0.99 - CANCELLED) | (decoded(run.sizes.gram_blocks) > 1)
        tl.store(run.contexts.items + 4 * item + 2, broken * NOT_FINITE + may_cancel.to(tl.int32) * MAY_CANCEL)


@triton.jit(do_not_specialize=["run"])
def query_statistics(run, KIND: tl.constexpr):
    """Norms of C rows of contexts along one item of queries, (2, rows, items of queries).

    For the softmax: sums of exponentials, and in the second plane the maxima.
    """
    C: tl.constexpr = KIND.C
    item = tl.program_id(0)
    first, count = item_of(run.queries, item)
    r = tl.program_id(1) * C + tl.arange(0, C)
    there = r < decoded(run.sizes.context_slots if KIND.LISTED else run.sizes.context_rows)
    rows = r + item * decoded(run.sizes.context_slots) if KIND.LISTED else r
    _lengths, scales = row_lengths(run.contexts, rows, there, KIND)
    norms, greatest = query_norms(run, first, count, r, scales, there, KIND)
    places = run.statistics + int64(rows) * decoded(run.sizes.statistics_pitch) + (0 if KIND.LISTED else item)
    tl.store(places, norms, mask=there)
    tl.store(places + decoded(run.sizes.plane), greatest, mask=there)


@triton.jit
def extreme_logits(run, tile, context, KIND: tl.constexpr):
    """(Greatest λn of an item's contexts for each query, (N,); of SPREAD the least, too)."""
    N: tl.constexpr = KIND.N
    greatest = tl.full((N,), float("-inf"), tl.float32)
    lowest = -greatest
    for start in range(0, context[1] if KIND.WIDE else 1, KIND.C):
        x = clip(similarities(run, tile, context, start, KIND), run, KIND)
        n, _norms = normalised(x, run, tile, context, start, KIND)
        there = start + tl.arange(0, KIND.C) < context[1]
        logits = bounded(n * run.numbers.lambda_softmax, MOST_LOGIT)
        greatest = tl.maximum(greatest, tl.max(tl.where(there[None, :], logits, float("-inf")), 1))
        if KIND.SPREAD:
            lowest = tl.minimum(lowest, tl.min(tl.where(there[None, :], logits, float("inf")), 1))
    return greatest, lowest


@triton.jit
def limits_of(run, tile, context, KIND: tl.constexpr):
    """`limits` of a tile's queries among an item's contexts, as far as the options at hand have them."""
    zeros = tl.full((KIND.N,), 0, tl.float32)
    limits = zeros, zeros, zeros
    if KIND.SHIFTED:
        greatest, lowest = extreme_logits(run, tile, context, KIND)
        limits = greatest, zeros, lowest
    if KIND.FOCAL:
        totals = zeros
        for start in range(0, context[1] if KIND.WIDE else 1, KIND.C):
            s = similarities(run, tile, context, start, KIND)
            p, _n, _norms = context_weights(s, run, tile, context, start, limits, KIND)
            totals += tl.sum(p, 1)
        limits = limits[0], totals * OF_MEAN / tl.maximum(context[1], 1).to(tl.float32), limits[2]
    return limits


@triton.jit(do_not_specialize=["run"])
def attend(run, KIND: tl.constexpr):
    """Relevances of a tile of queries to some items of contexts, stored by `store_relevances`."""
    N: tl.constexpr = KIND.N
    tile = query_tile(tl.program_id(0), run, KIND)
    _first_item, _n_items, row, _n_rows, here, _members, query_lengths, _query_scales = tile
    begin, end = contexts_of(tile, run, KIND)
    for item in tl.range(begin, end, num_stages=1):
        context = item_of(run.contexts, item)
        places = run.kept + int64(item) * decoded(run.sizes.kept_pitch) + row + tl.arange(0, N)
        limits = limits_of(run, tile, context, KIND)
        if KIND.SHIFTED:
            tl.store(places + SHIFT * decoded(run.sizes.kept_plane), limits[0], mask=here)
        if KIND.FOCAL:
            tl.store(places + LEAST * decoded(run.sizes.kept_plane), limits[1], mask=here)
        if KIND.SPREAD:
            tl.store(places + LOWEST * decoded(run.sizes.kept_plane), limits[2], mask=here)
        # Sums over blocks of contexts: q·a, Σp and ‖a‖².
        products = tl.full((N,), 0, tl.float32)
        totals = tl.full((N,), 0, tl.float32)
        squares = tl.full((N,), 0, tl.float32)
        orthogonal = tl.full((N,), 0, tl.float32)
        may_cancel = tl.load(run.contexts.items + 4 * item + 2) >= MAY_CANCEL
        for start in range(0, context[1] if KIND.WIDE else 1, KIND.C):
            s = similarities(run, tile, context, start, KIND)
            p, _n, _norms = context_weights(s, run, tile, context, start, limits, KIND)
            products += tl.sum(p * s, 1)
            totals += tl.sum(p, 1)
            squares += tl.sum(p * weighted_grams(run, tile, item, context, start, p, limits, KIND), 1)
            if may_cancel:
                c = start + tl.arange(0, KIND.C)
                rows = rows_within(context[0], c, context[1])
                lengths, _scales = row_lengths(run.contexts, rows, c < context[1], KIND)
                p = p * lengths[None, :]
                orthogonal += tl.sum(p * p, 1)
        # Relevances.
        squares = tl.maximum(squares, 0.0)
        cancels = (squares < orthogonal * CANCELLED) & (query_lengths != 0)
        store_relevances(run, places, here, products, squares, totals, query_lengths, cancels, KIND)
