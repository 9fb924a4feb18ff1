"""Gradients of stacked cross attention in Triton (docs/kernels.md §2): ∂L/∂S of S, saved or computed again, then
products.

Every sum has one order, and one program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import (
    LEAST,
    LOWEST,
    MOST_FACTOR,
    OF_PRODUCTS,
    OF_RELEVANCES,
    OF_SQUARES,
    SHIFT,
    TINY,
    clip,
    context_scales,
    context_weights,
    contexts_of,
    gram_cells,
    int64,
    item_of,
    item_sums,
    norm_factors,
    query_tile,
    similarities,
    spread,
    weighted_grams,
    zero_nan,
)
from crossret_kernels.cross_attention.triton.call import AttentionCall, memory, replaced
from crossret_kernels.cross_attention.triton.chunks import (
    LengthPlan,
    Run,
    listed_runs,
    planned_runs,
    run_in,
    single_part_of,
)
from crossret_kernels.cross_attention.triton.feature_gradients import FeatureSums, store
from crossret_kernels.cross_attention.triton.forward import attend_to
from crossret_kernels.cross_attention.triton.packing import TOGETHER
from crossret_kernels.cross_attention.triton.pooling import relevance_gradients
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_tiles import bounded, decoded, inverse, share_left
from crossret_kernels.gpu.tuning import Attention

MOST_GRADIENT = tl.constexpr(1e20)  # bound of gradients of logits and weights: 0/1 products meet no 0 × ∞
LEAST_NORM = tl.constexpr(1e-18)  # with a square in range


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_triton_backward`: gradients of regions and words, empty where not wanted.

    The forward pass' saved tensors are used where there are some.
    """
    grad_scores, saved, *inputs = arguments
    call, needs = AttentionCall(*inputs[:-3], packed=saved.numel() > 0), inputs[-2:]
    grad_scores = grad_scores.float()
    if max(grad_scores.stride(), default=0) >= 2**30 - 2:
        grad_scores = grad_scores.contiguous()
    side_needs = needs[:: call.spec.order]
    nonempty = 0 not in call.shape and call.filled and any(needs)
    layout = single_part_of(call) if nonempty and call.pairs is None else None
    # Kernels store gradients of all rows where items have slots.
    new = torch.zeros_like if layout is None else torch.empty_like
    outs = [
        new(side.features, memory_format=torch.contiguous_format) if want else side.features.new_empty(0)
        for side, want in zip(call.sides, side_needs, strict=True)
    ]
    targets = [out if want else None for out, want in zip(outs, side_needs, strict=True)]
    if layout is not None:
        workspace = saved if saved.numel() else grad_scores.new_empty(sum(layout.saved))
        _sum_up([run_in(workspace, call, layout, computed=saved.numel() > 0)], grad_scores, targets)
    elif nonempty and call.pairs is not None:
        # Sums over several runs are kept in float32, as far as memory is set aside for it.
        limit = Attention.SUM_BYTES // 4
        sums = [out.float() if out is not None and out.numel() <= limit else out for out in targets]
        _sum_up(listed_runs(call, Attention.LISTED_BYTES // 2), grad_scores, sums)
        for out, total in zip(targets, sums, strict=True):
            if out is not None and total is not None and total is not out:
                out.copy_(total)
    elif nonempty:
        plan = LengthPlan(call)
        parts = plan.parts(gradients=True)
        # Sums stay in float32: where both sides come in parts, one side's gradients are computed after the other's.
        if min(map(len, parts)) == 1:
            _sum_up(planned_runs(call, plan, parts, outer=int(len(parts[0]) == 1)), grad_scores, targets)
        else:
            for outer in (side for side in (0, 1) if side_needs[side]):
                outer_targets = [out if side == outer else None for side, out in enumerate(targets)]
                _sum_up(planned_runs(call, plan, parts, outer=outer), grad_scores, outer_targets)
    image_grads, caption_grads = outs[:: call.spec.order]
    return image_grads, caption_grads


def _sum_up(runs: Iterable[Run], grad_scores: Tensor, outs: Sequence[Tensor | None]) -> None:
    """Adds up gradients run by run; those of a part are stored after its last run."""
    side_sums: dict[int, FeatureSums] = {}
    for run in runs:
        store(*(side_sums.pop(side) for side, sums in [*side_sums.items()] if sums.part is not run.layout.parts[side]))
        _allocate(side_sums, run, outs)
        if not run.computed:
            attend_to(run, save=True)
        if all(part.filled for part in run.layout.parts):
            _add(run, grad_scores, side_sums.get(0), side_sums.get(1))
        del run  # frees the memory that the next run takes
    store(*side_sums.values())


def _allocate(side_sums: dict[int, FeatureSums], run: Run, outs: Sequence[Tensor | None]) -> None:
    """Allocates the sums of a run's parts whose gradients are wanted."""
    sides = zip(run.layout.parts, (run.contexts, run.queries), outs, strict=True)
    new = [(part, packed, out) for part, packed, out in sides if out is not None and part.side not in side_sums]
    workspace = memory(run.call.spec.device, [size for part, _, _ in new for size in FeatureSums.workspace_of(part)])
    for place, (part, packed, out) in enumerate(new):
        side_sums[part.side] = FeatureSums(run.call, part, packed, out, *workspace[2 * place : 2 * place + 2])


def _add(run: Run, grad_scores: Tensor, contexts: FeatureSums | None, queries: FeatureSums | None) -> None:
    """Adds a run's part of the gradients; its relevances are there."""
    inputs, layout, spec = run.inputs, run.layout, run.call.spec
    kind, key, n_items = spec.kind, spec.key, layout.parts[1].n_items
    pool_inputs = inputs, grad_scores, run.score_strides(grad_scores), int(queries is not None and queries.later)
    launch(relevance_gradients, (n_items, 1, 1), pool_inputs, replaced(kind, SAVE=True), key)
    if contexts is not None:
        sums = inputs, contexts.grams, layout.n_tiles, int(contexts.later)
        launch(gram_gradients, layout.gram_grid, sums, kind, key, Attention.warps_of_grams(kind.C))
    # Gradients of similarities, for which float16 is too narrow; and the sums that long queries' tiles leave.
    dtype, cells = torch.bfloat16 if spec.dtype == torch.bfloat16 else torch.float32, inputs.S.numel()
    out, norm_sums = memory(spec.device, [cells * dtype.itemsize // 4, layout.norm_sums if spec.kind.LONG else 16])
    out = out.view(dtype)
    for last in (False, True) if spec.kind.LONG else (True,):
        arguments = inputs, out, norm_sums, layout.pieces
        launch(similarity_gradients, layout.grid, arguments, replaced(kind, LAST=last), key, layout.warps)
    similarity_grads = run.matrix(out)
    if queries is not None:
        queries.add(similarity_grads, run.rows_of(run.contexts))
    if contexts is not None:
        contexts.add(similarity_grads.mT, run.rows_of(run.queries))


@triton.jit
def kept_rows(run, item, row, here, plane, KIND: tl.constexpr):
    """Values kept in a plane for an item of contexts and N rows of queries."""
    j = tl.arange(0, KIND.N)
    here = here if KIND.SHIFTED or plane != SHIFT else here & (j < 0)  # zeros where logits are not shifted
    places = run.kept + plane * decoded(run.sizes.kept_plane) + int64(item) * decoded(run.sizes.kept_pitch) + row + j
    return tl.load(places, mask=here, other=0.0)


@triton.jit
def kept_limits(run, item, row, here, KIND: tl.constexpr):
    """`limits` of N rows of queries, as `forward.attend` kept them."""
    shift = kept_rows(run, item, row, here, SHIFT, KIND)
    least = shift
    lowest = shift
    if KIND.FOCAL:
        least = kept_rows(run, item, row, here, LEAST, KIND)
    if KIND.SPREAD:
        lowest = kept_rows(run, item, row, here, LOWEST, KIND)
    return shift, least, lowest


@triton.jit(do_not_specialize=["run", "n_tiles", "later"])
def gram_gradients(run, gram_grads, n_tiles, later, KIND: tl.constexpr):
    """A block of ∂L/∂G + its transpose of an item of contexts, through its attended vectors' lengths: Σ 2 ∂L/∂‖a‖² p
    pᵀ.

    `later`: 1 where it is added to an earlier run's.
    """
    C: tl.constexpr = KIND.C
    item = tl.program_id(0)
    left = tl.program_id(1) // decoded(run.sizes.gram_blocks) * C
    right = tl.program_id(1) % decoded(run.sizes.gram_blocks) * C
    context = item_of(run.contexts, item)
    begin = item * decoded(run.sizes.pieces) if KIND.LISTED else 0
    sums = tl.full((C, C), 0, tl.float32)
    for number in range(begin, begin + (decoded(run.sizes.pieces) if KIND.LISTED else n_tiles)):
        tile = query_tile(number, run, KIND)
        _first_item, _n_items, row, _n_rows, here, _members, _query_lengths, _query_scales = tile
        g = zero_nan(kept_rows(run, item, row, here, OF_RELEVANCES, KIND))
        square_grads = bounded(-g * kept_rows(run, item, row, here, OF_SQUARES, KIND), MOST_FACTOR)
        s = similarities(run, tile, context, left, KIND)  # ahead of the condition: loads behind one are not prefetched
        if tl.max((square_grads != 0).to(tl.int32)) > 0:
            limits = kept_limits(run, item, row, here, KIND)
            p, _n, _norms = context_weights(s, run, tile, context, left, limits, KIND)
            p = p * context_scales(run, context, left, KIND)[None, :]
            right_p = p
            if KIND.WIDE:
                s = similarities(run, tile, context, right, KIND)
                right_p, _n, _norms = context_weights(s, run, tile, context, right, limits, KIND)
                right_p = right_p * context_scales(run, context, right, KIND)[None, :]
            sums = tl.dot(tl.trans(p * square_grads[:, None]), right_p, sums, input_precision=KIND.FINE)
    cells = gram_cells(gram_grads, item, run, left, right, KIND)
    if later > 0:
        sums += tl.load(cells)
    tl.store(cells, sums)


@triton.jit(do_not_specialize=["run", "norm_sums_pitch"])
def similarity_gradients(run, out, norm_sums, norm_sums_pitch, KIND: tl.constexpr):
    """∂L/∂S of a tile of queries and some items of contexts, in the layout of S.

    The softmax subtracts the mean of ∂L/∂p, which is zero but for rounding; λ and long features would magnify that, so
    the mean is taken of the same numbers. Of LONG items a first pass stores in `norm_sums` each tile's sums of the
    norms' gradients, (rows of contexts, tiles), of listed pairs (rows, pieces).
    """
    N: tl.constexpr = KIND.N
    C: tl.constexpr = KIND.C
    number = tl.program_id(0)
    tile = query_tile(number, run, KIND)
    first_item, _n_items, row, n_rows, here, members, _query_lengths, query_scales = tile
    piece = number % decoded(run.sizes.pieces) if KIND.LISTED else number
    begin, end = contexts_of(tile, run, KIND)
    for item in tl.range(begin, end, num_stages=1):
        context = item_of(run.contexts, item)
        g = kept_rows(run, item, row, here, OF_RELEVANCES, KIND)
        has_gradient = tl.max((g != 0).to(tl.int32)) > 0  # most have none under a hardest-negative loss
        if KIND.LONG:  # norms depend on all pieces of an item
            query_row, query_count = item_of(run.queries, first_item)
            for other in range(0, query_count, N):
                other_mask = other + tl.arange(0, N) < query_count
                other_grads = kept_rows(run, item, query_row + other, other_mask, OF_RELEVANCES, KIND)
                has_gradient |= tl.max((other_grads != 0).to(tl.int32)) > 0
        with_nan = g * kept_rows(run, item, row, here, OF_PRODUCTS, KIND)  # NaN where the gradient is NaN
        product_grads = bounded(with_nan, MOST_FACTOR)
        with_nan = tl.where(with_nan == with_nan, product_grads, with_nan)
        square_grads = bounded(-zero_nan(g) * kept_rows(run, item, row, here, OF_SQUARES, KIND), MOST_FACTOR)
        limits = kept_limits(run, item, row, here, KIND)
        mean = tl.full((N,), 0, tl.float32)
        lowest_grads = mean
        if KIND.WIDE and has_gradient:
            totals = tl.full((N,), 0, tl.float32)
            moving_grads = totals
            n_moving = totals
            n_lowest = totals
            for start in range(0, context[1], C):
                s = similarities(run, tile, context, start, KIND)
                p, _n, _norms = context_weights(s, run, tile, context, start, limits, KIND)
                gram_products = weighted_grams(run, tile, item, context, start, p, limits, KIND)
                weight_grads = product_grads[:, None] * s + square_grads[:, None] * gram_products
                mean += tl.sum(p * weight_grads, 1)
                totals += tl.sum(p, 1)
                if KIND.SPREAD:
                    moves, ties = moving(s, p, context, start, limits, run, KIND)
                    moving_grads += tl.sum(weight_grads * moves, 1)
                    n_moving += tl.sum(moves, 1)
                    n_lowest += tl.sum(ties, 1)
            mean /= tl.maximum(totals, TINY)
            lowest_grads = (moving_grads - n_moving * mean) / tl.maximum(n_lowest, 1.0)
        slots = tl.maximum((context[1] + TOGETHER - 1) // TOGETHER * TOGETHER, decoded(run.sizes.context_slots))
        for start in range(0, slots if KIND.WIDE else 1, C):
            c = start + tl.arange(0, C)
            context_rows = context[0] + c
            norm_sum = tl.full((C,), 0, tl.float32)
            gradients = tl.full((N, C), 0, tl.float32)
            s = similarities(run, tile, context, start, KIND)  # ahead of the condition
            if has_gradient:
                p, n, norms = context_weights(s, run, tile, context, start, limits, KIND)
                gram_products = weighted_grams(run, tile, item, context, start, p, limits, KIND)
                weight_grads = product_grads[:, None] * s + square_grads[:, None] * gram_products
                if not KIND.WIDE:
                    mean = tl.sum(p * weight_grads, 1) / tl.maximum(tl.sum(p, 1), TINY)
                if KIND.SPREAD:
                    moves, ties = moving(s, p, context, start, limits, run, KIND)
                    share_grads = moves * (weight_grads - mean[:, None])
                    if not KIND.WIDE:
                        lowest_grads = tl.sum(share_grads, 1) / tl.maximum(tl.sum(ties, 1), 1.0)
                    logit_grads = (share_grads - ties * lowest_grads[:, None]) * inverse(limits[0] - limits[2])[:, None]
                else:
                    logit_grads = run.numbers.lambda_softmax * (p * (weight_grads - mean[:, None]))
                logit_grads = bounded(logit_grads, MOST_GRADIENT)
                x = clip(s, run, KIND)
                gradients = logit_grads
                if KIND.NORM != "none":
                    along = item_sums((n if KIND.NORM == "softmax" else x) * logit_grads, members, KIND)
                    if KIND.LONG:
                        if KIND.LAST:
                            at = norm_sums + context_rows * norm_sums_pitch
                            first_piece = 0 if KIND.LISTED else number - (row - query_row) // N
                            for other in range(0, tl.cdiv(query_count, N)):
                                norm_sum += tl.load(at + first_piece + other, c < context[1], 0.0)
                            along = norm_sum[None, :] + tl.zeros_like(along)
                        else:
                            norm_sum = tl.sum(tl.where((tl.arange(0, along.shape[0]) == 0)[:, None], along, 0.0), 0)
                    gradients = norm_gradients(x, n, norms, along, logit_grads, members, KIND)
                if KIND.CLIPS:
                    gradients = gradients * tl.where(s > 0, 1.0, run.numbers.slope)
                gradients += with_nan[:, None] * p
                if KIND.NORMALIZE:
                    gradients = gradients * query_scales[:, None] * context_scales(run, context, start, KIND)[None, :]
                gradients = tl.where(here[:, None] & (c < context[1])[None, :], gradients, 0.0)
            if KIND.LAST:
                first_column = start if KIND.LISTED else context[0] + start
                store_block(gradients, out, run, first_column, slots - start, row, n_rows)
            else:
                tl.store(norm_sums + context_rows * norm_sums_pitch + piece, norm_sum, mask=c < slots)
        behind = decoded(run.sizes.context_rows) - context[0] - slots
        if KIND.LAST and (not KIND.LISTED) and (item + 1 == decoded(run.sizes.n_contexts)):
            store_block(tl.full((N, 16), 0, tl.float32), out, run, context[0] + slots, behind, row, n_rows)


@triton.jit
def moving(s, p, context, start, limits, run, KIND: tl.constexpr):
    """0 or 1 (N, C), of contexts of SPREAD: those whose weights have a gradient; those of the least similarity, which
    share its gradient.

    The greatest similarity has none: it is a factor of all weights of a query alike.
    """
    there = (start + tl.arange(0, KIND.C) < context[1])[None, :]
    _n, stays = spread(s, limits[0][:, None], limits[2][:, None], context[1], run)
    moves = p > 0 if KIND.FOCAL else there & stays
    return moves.to(tl.float32), (there & (s == limits[2][:, None])).to(tl.float32)


@triton.jit
def store_block(x, out, run, column, n_columns, row, n_rows):
    """Stores (N, C) into S's layout from a row of queries and a column of contexts on."""
    j = tl.arange(0, x.shape[0])[:, None]
    c = tl.arange(0, x.shape[1])[None, :]
    cells = (row + j) * (decoded(run.sizes.pitch) * 16) + column + c
    tl.store(out + cells, x.to(out.dtype.element_ty), mask=c < tl.where(j < n_rows, n_columns, 0))


@triton.jit
def norm_gradients(x, n, norms, along, logit_grads, members, KIND: tl.constexpr):
    """∂L/∂x from ∂L/∂n through the norm; `along` is the sum over each item's queries of n ∂L/∂n (softmax), else of x
    ∂L/∂n.
    """
    FINE: tl.constexpr = KIND.FINE
    if KIND.NORM == "softmax":
        return n * (logit_grads - share_left(members, along, FINE))
    factors = tl.where(norms != 0, norm_factors(norms), 0.0)
    along = along * factors * factors
    if KIND.NORM == "l1norm":
        directions = (x > 0).to(tl.float32) - (x < 0).to(tl.float32)
    else:
        directions = x
        lengths = tl.maximum(norms, LEAST_NORM)
        along = along * tl.rsqrt(lengths * lengths)
    gradients = share_left(members, factors, FINE) * logit_grads
    return gradients - share_left(members, bounded(along, MOST_FACTOR), FINE) * directions
