"""Gradients of stacked cross attention in Triton (kernels.md §2): S is made again, and turned into ∂L/∂S.

Every sum is taken in the same order every time, and none by two programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.attention import (
    LOG2_E,
    MOST_FACTOR,
    clip,
    context_weights,
    gram_block,
    item_sums,
    membership,
    norm_factors,
    query_tile,
    row_lengths,
    wide,
)
from crossret_kernels.cross_attention.triton.call import Call, Packed, Source, row_offsets
from crossret_kernels.cross_attention.triton.chunks import (
    LISTED_BYTES,
    Run,
    dense_run,
    listed_runs,
    multiply,
    pack_contexts,
    pack_queries,
    parts_of,
)
from crossret_kernels.cross_attention.triton.forward import (
    CONTEXTS_ABREAST,
    POOLED_CONTEXTS,
    POOLED_QUERIES,
    PROGRAMS,
    attend_to,
    broken_item,
    pooled_relevances,
    score_places,
)
from crossret_kernels.triton_launch import launch
from crossret_kernels.triton_tiles import bounded, inverse, share_left

MOST_SCORE_GRADIENT = tl.constexpr(1e15)  # beyond it, NaN among them, gradients of a pair are NaN
MOST_GRADIENT = tl.constexpr(1e20)  # of logits and weights, so that 0/1 products meet no 0 × ∞
LEAST_NORM = tl.constexpr(1e-18)  # whose square is in range
OF_RELEVANCES = tl.constexpr(5)  # the plane of ∂L/∂r
FEATURES = 64  # columns of features that a program adds to


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_triton_backward`: gradients of regions and words, empty where one is not wanted."""
    call, needed = Call.of(*arguments[1:-2]), arguments[-2:]
    grad_scores = arguments[0].float()
    if max(grad_scores.stride(), default=0) >= 2**31:
        grad_scores = grad_scores.contiguous()
    sides = (call.contexts, call.queries)[:: 1 - 2 * call.context_column]
    outs = [
        side.features.new_zeros(side.features.shape if wanted else 0)
        for side, wanted in zip(sides, needed, strict=True)
    ]
    if grad_scores.numel() and any(needed):
        of_contexts, of_queries = (
            out if wanted else None
            for out, wanted in list(zip(outs, needed, strict=True))[:: 1 - 2 * call.context_column]
        )
        add = _add_of_all_pairs if call.pairs is None else _add_of_listed_pairs
        add(call, grad_scores, of_contexts, of_queries)
    return outs[0], outs[1]


def _packed_dtype(call: Call) -> torch.dtype:
    """Of rows and similarities' gradients; float16 has too little room for those."""
    return torch.bfloat16 if call.dtype == torch.bfloat16 else torch.float32


def _apart(call: Call) -> bool:
    """Whether gradients of similarities cannot take their place: narrower ones, or where blocks need one another."""
    return call.wide or _packed_dtype(call) != torch.float32


class Sums:
    """Gradients of a packed part of one side, summed up in float32.

    Attributes:
        packed: its rows.
        bounds: first item, or tile of queries, and the one behind the last.
        own: what each row of queries gets of itself, negative; unused zeros of contexts.
        total: the sums (rows, D), of listed pairs (pairs, slots, D); None while there are none.
    """

    def __init__(self, packed: Packed, bounds: tuple[int, int]) -> None:
        self.packed = packed
        self.bounds = bounds
        self.own = torch.zeros(packed.rows.size(0), device=packed.rows.device)
        self.total: Tensor | None = None

    @classmethod
    def of(cls, call: Call, of_contexts: bool, bounds: tuple[int, int]) -> Sums:
        pack = pack_contexts if of_contexts else pack_queries
        return cls(pack(call, bounds, _packed_dtype(call)), bounds)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Adds a product."""
        product = torch.empty(*left.shape[:-1], right.size(-1), device=left.device)
        multiply(left, right, product)
        self.total = product if self.total is None else self.total.add_(product)
        return self.total


def _add_of_all_pairs(call: Call, grad_scores: Tensor, of_contexts: Tensor | None, of_queries: Tensor | None) -> None:
    """Run by run; where both sides come in parts, for one side after the other, so that sums stay in float32."""
    parts = parts_of(call, _apart(call))
    together = min(len(parts.contexts), len(parts.queries)) == 2
    if not together and of_contexts is not None and of_queries is not None:
        _add_of_all_pairs(call, grad_scores, of_contexts, None)
        _add_of_all_pairs(call, grad_scores, None, of_queries)
        return
    by_contexts = len(parts.contexts) > 2 if together else of_contexts is not None
    outer, inner = (list(zip(bounds, bounds[1:], strict=False)) for bounds in (parts if by_contexts else parts[::-1]))
    others = None
    for bounds in outer:
        own = Sums.of(call, by_contexts, bounds)
        for other_bounds in inner:
            if others is None or len(inner) > 1:
                others = Sums.of(call, not by_contexts, other_bounds)
            contexts, queries = (own, others) if by_contexts else (others, own)
            run = dense_run(call, contexts.packed, queries.packed, contexts.bounds, queries.bounds, fused=False)
            _add(run, grad_scores, contexts if of_contexts is not None else None, queries, of_queries is not None)
        _store(call, by_contexts, own, of_contexts if by_contexts else of_queries)
    if others is not None:
        _store(call, not by_contexts, others, of_queries if by_contexts else of_contexts)


def _add_of_listed_pairs(
    call: Call, grad_scores: Tensor, of_contexts: Tensor | None, of_queries: Tensor | None
) -> None:
    """Run by run; an item whose pairs lie in several is rounded in between."""
    for run in listed_runs(call, _packed_dtype(call), LISTED_BYTES // 2):
        assert call.pairs is not None
        sums = [Sums(side, (0, 0)) for side in (run.contexts, run.queries)]
        _add(run, grad_scores, sums[0] if of_contexts is not None else None, sums[1], of_queries is not None)
        for of_side, out, is_context in ((sums[0], of_contexts, True), (sums[1], of_queries, False)):
            if out is not None:
                _store_listed(call, run, is_context, of_side, out)


def _add(run: Run, grad_scores: Tensor, contexts: Sums | None, queries: Sums, of_queries: bool) -> None:
    """A run's part of the gradients."""
    call, constants, sizes = run.call, run.saving, run.sizes
    attend_to(run)
    strides = run.score_strides(grad_scores)
    launch(
        relevance_gradients, (run.n_queries, 1, 1),
        (run.kept, run.contexts, run.queries, grad_scores, queries.own, sizes, strides, call.numbers), constants, 1,
    )  # fmt: skip
    of_grams = torch.empty_like(run.grams)
    if contexts is not None:
        launch(
            gram_gradients, (run.n_contexts, run.gram_blocks**2, 1),
            (run.similarities, call.plan.tiles, run.contexts, run.queries, run.statistics, run.kept, of_grams, sizes,
             call.numbers, run.n_tiles),
            constants, 8,
        )  # fmt: skip
    out = run.similarities
    if _apart(call):
        out = torch.empty(out.shape, dtype=_packed_dtype(call), device=out.device)
    pulls = torch.empty(run.context_rows * run.pulls_pitch if call.long else 1, device=out.device)
    abreast = 1 if run.listed else max(1, min(CONTEXTS_ABREAST, run.n_contexts * run.n_tiles // PROGRAMS))
    for last in (False, True) if call.long else (True,):
        launch(
            similarity_gradients, (run.n_tiles, 1 if run.listed else -(-run.n_contexts // abreast), 1),
            (run.similarities, out, call.plan.tiles, run.contexts, run.queries, run.grams, run.statistics, run.kept,
             pulls, sizes, call.numbers, abreast, run.pulls_pitch),
            constants.having(LAST=last, OUT=out.dtype), 8 if call.tile >= 128 else 4,
        )  # fmt: skip
    of_similarities = run.matrix(out)
    if of_queries:
        queries.add(of_similarities.mT, run.rows_of(run.contexts))
    if contexts is not None:
        total = contexts.add(of_similarities, run.rows_of(run.queries))
        launch(
            add_gram_products, (run.n_contexts, run.gram_blocks, call.dim // FEATURES),
            (of_grams, run.contexts, total, sizes), constants.having(FEATURES=FEATURES), 4,
        )  # fmt: skip


def _store(call: Call, of_contexts: bool, sums: Sums, out: Tensor | None) -> None:
    """A part's sums as gradients, where its rows lie."""
    if out is None:
        return
    side = call.contexts if of_contexts else call.queries
    own = 0 if of_contexts else 1
    first = sums.bounds[0] if of_contexts else call.plan.tile_items[sums.bounds[0]]
    source = Source(0 if side.packed else out.stride(0), out.stride(-2), first, side.longest, 0)
    constants = call.store_constants(side, sums.packed.rows.dtype)
    n_items = sums.packed.broken.numel()
    launch(
        store_gradients, (n_items, max(1, -(-side.longest // constants.values["ROWS"])), 1),
        (call.plan.starts[own], call.plan.places[own], sums.packed, sums.total, sums.own, out, source), constants,
    )  # fmt: skip


def _store_listed(call: Call, run: Run, of_contexts: bool, sums: Sums, out: Tensor) -> None:
    """Adds a run's sums to the gradients, all pairs of an item at once, in the order of the list."""
    assert call.pairs is not None
    side = call.contexts if of_contexts else call.queries
    own = 0 if of_contexts else 1
    column = call.context_column if of_contexts else 1 - call.context_column
    pairs = call.pairs[run.first_context : run.first_context + run.n_contexts, column]
    items, order = pairs.sort(stable=True)
    ends = torch.searchsorted(items, items, right=True)
    source = Source(0 if side.packed else out.stride(0), out.stride(-2), 0, side.longest, column)
    constants = call.store_constants(side, sums.packed.rows.dtype)
    launch(
        add_listed_gradients, (run.n_contexts, max(1, -(-side.longest // constants.values["ROWS"])), 1),
        (call.plan.starts[own], call.plan.places[own], items, order, ends, sums.packed, sums.total, sums.own, out,
         source), constants,
    )  # fmt: skip


@triton.jit
def first_greatest(cells, items, count, greatest):
    """The first query of every pair that has its greatest relevance."""
    j = tl.arange(0, POOLED_QUERIES)
    best = tl.full((POOLED_CONTEXTS,), 2**30, tl.int32)
    for start in range(0, count, POOLED_QUERIES):
        there = (start + j < count)[None, :]
        r = tl.load(cells + start, mask=items[:, None] & there, other=0.0)
        found = tl.where(there & (r == greatest[:, None]), start + j[None, :], 2**30)
        best = tl.minimum(best, tl.min(found, 1))
    return best


@triton.jit(do_not_specialize=["sizes", "strides", "numbers"], do_not_specialize_on_alignment=["grad_scores"])
def relevance_gradients(
    kept, contexts, queries, grad_scores, own, sizes, strides, numbers,
    POOLING: tl.constexpr, LISTED: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """Relevances of an item of queries become ∂L/∂r; `own` gets what each row of it gets of itself.

    ∂L/∂r is NaN of a pair whose gradient is no number, or which has one and is not finite.
    """
    query = tl.program_id(0)
    first = tl.load(queries.items + 2 * query)
    count = tl.load(queries.items + 2 * query + 1)
    query_broken = broken_item(queries, first, count)
    j = tl.arange(0, POOLED_QUERIES)
    lane = tl.arange(0, POOLED_CONTEXTS)
    for start in range(0, count, POOLED_QUERIES):
        there = start + j < count
        along = tl.zeros((POOLED_QUERIES,), tl.float32)
        for block in range(0, 1 if LISTED else sizes.n_contexts, POOLED_CONTEXTS):
            item, inside, places = score_places(query, block, lane, sizes, strides, LISTED)
            grads = tl.load(grad_scores + places, mask=inside, other=0.0)
            counts = tl.load(contexts.items + 2 * item + 1, mask=inside, other=1)
            broken = tl.load(contexts.broken + item, mask=inside, other=0) + query_broken
            fine = (tl.abs(grads) < MOST_SCORE_GRADIENT) & (broken == 0)
            grads = tl.where((grads == 0) | (counts == 0), 0.0, tl.where(fine, grads, float("nan")))
            cells = kept + (wide(item) * sizes.kept_pitch + first)[:, None] + j[None, :]
            _, sums, greatest = pooled_relevances(cells, inside, count, numbers.lambda_lse, POOLING)
            cells += start
            r = tl.load(cells, mask=inside[:, None] & there[None, :], other=0.0)
            if POOLING == "lse":
                shares = tl.exp2(numbers.lambda_lse * (r - greatest[:, None]) * LOG2_E)
                shares = shares / tl.maximum(sums, 1.0)[:, None]
            elif POOLING == "max":
                best = first_greatest(cells - start, inside, count, greatest)
                shares = (start + j[None, :] == best[:, None]).to(tl.float32)
            elif POOLING == "avg":
                shares = tl.full((POOLED_CONTEXTS, POOLED_QUERIES), 1.0, tl.float32) / count.to(tl.float32)
            else:
                shares = tl.full((POOLED_CONTEXTS, POOLED_QUERIES), 1.0, tl.float32)
            of_relevances = grads[:, None] * shares
            moves = tl.load(cells + 2 * sizes.kept_plane, mask=inside[:, None] & there[None, :], other=0.0) != 0
            along -= tl.sum(tl.where(moves, of_relevances * r, 0.0), 0)
            tl.store(cells + OF_RELEVANCES * sizes.kept_plane, of_relevances, mask=inside[:, None] & there[None, :])
        rows = own + first + start + j
        tl.store(rows, tl.load(rows, mask=there, other=0.0) + along, mask=there)


@triton.jit
def clean(x):
    """x, and 0 for what is no number: 0/1 products would share it out."""
    return tl.where(x == x, x, 0.0)


@triton.jit(do_not_specialize=["sizes", "numbers", "n_tiles"])
def gram_gradients(
    S, tiles, contexts, queries, statistics, kept, of_grams, sizes, numbers, n_tiles,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, NORMALIZE: tl.constexpr, LISTED: tl.constexpr,
    LONG: tl.constexpr, WIDE: tl.constexpr, FUSED: tl.constexpr, G: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """A block of ∂L/∂G + its transpose of an item of contexts, by way of its rows' lengths: Σ 2 ∂L/∂‖a‖² p pᵀ."""
    item = tl.program_id(0)
    blocks = tl.cdiv(sizes.gram_pitch, C)
    left = tl.program_id(1) // blocks * C
    right = tl.program_id(1) % blocks * C
    context = tl.load(contexts.items + 2 * item), tl.load(contexts.items + 2 * item + 1)
    j = tl.arange(0, N)
    sums = tl.zeros((C, C), tl.float32)
    for number in range(item * sizes.pieces if LISTED else 0, (item + 1) * sizes.pieces if LISTED else n_tiles):
        tile = query_tile(number, tiles, queries, sizes, N, LONG, LISTED)
        first_item, n_items, row, n_rows, _ = tile
        places = kept + wide(item) * sizes.kept_pitch + row + j
        g = tl.load(places + OF_RELEVANCES * sizes.kept_plane, mask=j < n_rows, other=0.0)
        of_squares = -clean(g) * tl.load(places + 2 * sizes.kept_plane, mask=j < n_rows, other=0.0)
        of_squares = bounded(of_squares, MOST_FACTOR)
        if tl.max((of_squares != 0).to(tl.int32)) > 0:
            members = membership(row + j, queries, first_item, n_items, G)
            lengths, scales = row_lengths(queries, row + j, j < n_rows, NORMALIZE)
            shift = tl.zeros((N,), tl.float32)
            if SHIFTED:
                shift = tl.load(places + 4 * sizes.kept_plane, mask=j < n_rows, other=0.0)
            _, _, _, p, _, of_rows = context_weights(
                S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, left, shift, members, lengths,
                scales,
                CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
            )  # fmt: skip
            p = p * of_rows[None, :]
            others = p
            if WIDE:
                _, _, _, others, _, of_columns = context_weights(
                    S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, right, shift, members,
                    lengths, scales,
                    CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
                )  # fmt: skip
                others = others * of_columns[None, :]
            sums = tl.dot(tl.trans(p * of_squares[:, None]), others, sums, input_precision=FINE)
    pitch = sizes.gram_pitch
    r, c = left + tl.arange(0, C), right + tl.arange(0, C)
    cells = of_grams + wide(item) * pitch * pitch + r[:, None] * pitch + c[None, :]
    tl.store(cells, sums, mask=(r < pitch)[:, None] & (c < pitch)[None, :])


@triton.jit(do_not_specialize=["sizes", "numbers", "abreast", "pulls_pitch"])
def similarity_gradients(
    S, out, tiles, contexts, queries, grams, statistics, kept, pulls, sizes, numbers, abreast, pulls_pitch,
    CLIPS: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr, NORMALIZE: tl.constexpr, LISTED: tl.constexpr,
    LONG: tl.constexpr, WIDE: tl.constexpr, FUSED: tl.constexpr, LAST: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, K: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """∂L/∂S of a tile of queries and `abreast` items of contexts, which may take the place of S.

    Of LONG items a first pass leaves in `pulls` what the norms' gradients sum up over each tile's queries.
    """
    number = tl.program_id(0)
    tile = query_tile(number, tiles, queries, sizes, N, LONG, LISTED)
    first_item, n_items, row, n_rows, column = tile
    j = tl.arange(0, N)
    members = membership(row + j, queries, first_item, n_items, G)
    query_lengths, query_scales = row_lengths(queries, row + j, j < n_rows, NORMALIZE)
    if LISTED:
        begin = first_item
        end = first_item + 1
    else:
        begin = tl.program_id(1) * abreast
        end = tl.minimum(begin + abreast, sizes.n_contexts)
    for item in range(begin, end):
        context = tl.load(contexts.items + 2 * item), tl.load(contexts.items + 2 * item + 1)
        first, count = context
        places = kept + wide(item) * sizes.kept_pitch + row + j
        here = j < n_rows
        g = tl.load(places + OF_RELEVANCES * sizes.kept_plane, mask=here, other=0.0)
        filled = tl.max((g != 0).to(tl.int32)) > 0  # of a hardest-negative loss most have none
        if LONG:  # norms tie a piece to its item's others
            query_row = tl.load(queries.items + 2 * first_item)
            query_count = tl.load(queries.items + 2 * first_item + 1)
            of_item = kept + OF_RELEVANCES * sizes.kept_plane + wide(item) * sizes.kept_pitch + query_row + j
            for other in range(0, query_count, N):
                filled |= (
                    tl.max((tl.load(of_item + other, mask=other + j < query_count, other=0.0) != 0).to(tl.int32)) > 0
                )
        of_products = tl.load(places + sizes.kept_plane, mask=here, other=0.0)
        of_squares = bounded(-clean(g) * tl.load(places + 2 * sizes.kept_plane, mask=here, other=0.0), MOST_FACTOR)
        mean = clean(g) * tl.load(places + 3 * sizes.kept_plane, mask=here, other=0.0)
        spoilt = g * of_products  # NaN of what is no number
        of_products = bounded(clean(spoilt), MOST_FACTOR)
        spoilt = tl.where(spoilt == spoilt, of_products, spoilt)
        shift = tl.zeros((N,), tl.float32)
        if SHIFTED:
            shift = tl.load(places + 4 * sizes.kept_plane, mask=here, other=0.0)
        slots = sizes.context_slots if LISTED else count
        for start in range(0, slots if WIDE else 1, C):
            c = start + tl.arange(0, C)
            context_rows = first + c
            gradients = tl.zeros((N, C), tl.float32)
            pull = tl.zeros((C,), tl.float32)
            if filled:
                s, n, norms, p, _, scales = context_weights(
                    S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, start, shift, members,
                    query_lengths, query_scales,
                    CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
                )  # fmt: skip
                if WIDE:
                    weighted = tl.zeros((N, C), tl.float32)
                    for other in range(0, count, C):
                        _, _, _, others, _, _ = context_weights(
                            S, tiles, contexts, queries, statistics, sizes, numbers, tile, context, other, shift,
                            members, query_lengths, query_scales,
                            CLIPS, NORM, SHIFTED, NORMALIZE, LONG, FUSED, D, N, C, K, MAIN, FINE,
                        )  # fmt: skip
                        block = gram_block(grams, item, sizes.gram_pitch, other, start, C)
                        weighted = tl.dot(others, block, weighted, input_precision=FINE)
                else:
                    weighted = tl.dot(p, gram_block(grams, item, sizes.gram_pitch, 0, 0, C), input_precision=FINE)
                of_weights = of_products[:, None] * s + of_squares[:, None] * weighted
                of_weights = p * (bounded(of_weights, MOST_GRADIENT) - mean[:, None])
                of_logits = bounded(numbers.lambda_softmax * of_weights, MOST_GRADIENT)
                x = clip(s, numbers.slope, CLIPS)
                if NORM == "none":
                    gradients = of_logits
                else:
                    along = item_sums((n if NORM == "softmax" else x) * of_logits, members, FINE)
                    if LONG:
                        at = pulls + tl.minimum(context_rows, sizes.context_rows - 1).to(tl.int64) * pulls_pitch
                        if LAST:
                            first_piece = 0 if LISTED else number - (row - query_row) // N
                            for piece in range(0, tl.cdiv(query_count, N)):
                                pull += tl.load(at + first_piece + piece)
                            along = pull[None, :] + tl.zeros_like(along)
                        else:
                            pull = tl.sum(tl.where((tl.arange(0, G) == 0)[:, None], along, 0.0), 0)
                    gradients = norm_gradients(x, n, norms, along, of_logits, members, NORM, FINE)
                if CLIPS:
                    gradients = gradients * tl.where(s > 0, 1.0, numbers.slope)
                gradients += spoilt[:, None] * p
                if NORMALIZE:
                    gradients = gradients * query_scales[:, None] * scales[None, :]
                gradients = tl.where(here[:, None] & (c < count)[None, :], gradients, 0.0)
            if LAST:
                rows_there = column + j < sizes.query_slots if LISTED else here
                cells = context_rows.to(tl.int64)[None, :] * (sizes.pitch * 16) + column + j[:, None]
                tl.store(
                    out + cells, gradients.to(out.dtype.element_ty), mask=rows_there[:, None] & (c < slots)[None, :]
                )
            else:
                at = pulls + context_rows.to(tl.int64) * pulls_pitch
                tl.store(at + (number % sizes.pieces if LISTED else number), pull, mask=c < slots)


@triton.jit
def norm_gradients(x, n, norms, along, of_logits, members, NORM: tl.constexpr, FINE: tl.constexpr):
    """∂L/∂x through the norm from ∂L/∂n, with Σ n ∂L/∂n of the softmax, Σ x ∂L/∂n else, `along` each item's queries."""
    if NORM == "softmax":
        return n * (of_logits - share_left(members, along, FINE))
    factors = tl.where(norms != 0, norm_factors(norms), 0.0)
    along = along * factors * factors
    if NORM == "l1norm":
        directions = (x > 0).to(tl.float32) - (x < 0).to(tl.float32)
    else:
        directions = x
        lengths = tl.maximum(norms, LEAST_NORM)
        along = along * tl.rsqrt(lengths * lengths)
    gradients = share_left(members, factors, FINE) * of_logits
    return gradients - share_left(members, bounded(along, MOST_FACTOR), FINE) * directions


@triton.jit(do_not_specialize=["sizes"])
def add_gram_products(
    of_grams, contexts, sums, sizes,
    D: tl.constexpr, C: tl.constexpr, FEATURES: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Adds (∂L/∂G + its transpose) C to a block of an item's rows, in FEATURES of their columns."""
    item = tl.program_id(0)
    first = tl.load(contexts.items + 2 * item)
    count = tl.load(contexts.items + 2 * item + 1)
    r = tl.program_id(1) * C + tl.arange(0, C)
    d = tl.program_id(2) * FEATURES + tl.arange(0, FEATURES)
    cells = sums + (first + r).to(tl.int64)[:, None] * D + d[None, :]
    there = (r < count)[:, None]
    total = tl.load(cells, mask=there, other=0.0)
    for start in range(0, count, C):
        c = start + tl.arange(0, C)
        block = gram_block(of_grams, item, sizes.gram_pitch, tl.program_id(1) * C, start, C)
        rows = contexts.rows + (first + c).to(tl.int64)[:, None] * D + d[None, :]
        x = tl.load(rows, mask=(c < count)[:, None], other=0.0).to(tl.float32)
        total = tl.dot(block, x, total, input_precision=FINE)
    tl.store(cells, total, mask=there)


@triton.jit
def row_gradients(total, packed, rows, there, own, NORMALIZE: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """(ROWS, WIDTH) of features' rows from what their packed ones have summed up: along the row itself too, or not."""
    d = tl.arange(0, WIDTH)
    cells = rows.to(tl.int64)[:, None] * D + d[None, :]
    x = tl.load(packed.rows + cells, mask=there[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    norms = tl.load(packed.norms + rows, mask=there, other=0.0)
    norms = tl.where(norms == norms, norms, 0.0)
    if NORMALIZE:
        x = x * inverse(norms)[:, None]
        total = total - tl.sum(total * x, 1)[:, None] * x
        return total * tl.load(packed.powers + rows, mask=there, other=0.0)[:, None]
    shares = 1.0 / tl.maximum(norms, LEAST_NORM)
    return total + (own * shares)[:, None] * (x * shares[:, None])


@triton.jit(do_not_specialize=["source"])
def store_gradients(
    starts, places, packed, sums, own, out, source,
    PACKED: tl.constexpr, MASKED: tl.constexpr, NORMALIZE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A part's sums as the gradients of ROWS rows of an item, where they lie."""
    number = tl.program_id(0)
    item = wide(source.first + number)
    start = tl.load(starts + item)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = r < tl.load(starts + item + 1) - start
    place = r
    if MASKED:
        place = tl.load(places + start + r, mask=there, other=0)
    d = tl.arange(0, WIDTH)
    rows = tl.load(packed.items + 2 * number) + r
    inside = there[:, None] & (d < D)[None, :]
    total = tl.load(sums + rows.to(tl.int64)[:, None] * D + d[None, :], mask=inside, other=0.0)
    along = tl.load(own + rows, mask=there, other=0.0)
    found = row_gradients(total, packed, rows, there, along, NORMALIZE, D, WIDTH)
    cells = out + row_offsets(place, item, start, source, PACKED)[:, None] + d[None, :]
    tl.store(cells, found.to(out.dtype.element_ty), mask=there[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=["source"])
def add_listed_gradients(
    starts, places, items, order, ends, packed, sums, own, out, source,
    PACKED: tl.constexpr, MASKED: tl.constexpr, NORMALIZE: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adds the sums of all pairs of an item to ROWS rows' gradients; `order` has the pairs by item, up to its end."""
    number = tl.program_id(0)
    item = tl.load(items + number)
    if number == 0 or tl.load(items + tl.maximum(number - 1, 0)) != item:
        start = tl.load(starts + item)
        r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there = r < tl.load(starts + item + 1) - start
        place = r
        if MASKED:
            place = tl.load(places + start + r, mask=there, other=0)
        d = tl.arange(0, WIDTH)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        along = tl.zeros((ROWS,), tl.float32)
        for other in range(number, tl.load(ends + number).to(tl.int32)):
            rows = tl.load(order + other).to(tl.int32) * source.slots + r
            cells = rows.to(tl.int64)[:, None] * D + d[None, :]
            total += tl.load(sums + cells, mask=there[:, None] & (d < D)[None, :], other=0.0)
            along += tl.load(own + rows, mask=there, other=0.0)
        rows = tl.load(order + number).to(tl.int32) * source.slots + r
        found = row_gradients(total, packed, rows, there, along, NORMALIZE, D, WIDTH)
        cells = out + row_offsets(place, item, start, source, PACKED)[:, None] + d[None, :]
        inside = there[:, None] & (d < DIM)[None, :]
        found += tl.load(cells, mask=inside, other=0.0).to(tl.float32)
        tl.store(cells, found.to(out.dtype.element_ty), mask=inside)
