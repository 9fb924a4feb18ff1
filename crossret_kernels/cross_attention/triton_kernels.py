"""Triton kernels of stacked cross attention's scores: tiles of whole images and captions, or listed pairs.

A tile's similarities never leave the chip: they become its pairs' scores. WHOLE tiles hold one item of each side, a
listed pair; others hold what `tile_plan` packed.
"""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton_attention import item_grams, pooled, tile_relevances, tile_similarities
from crossret_kernels.triton_tiles import grouped, inverse, item_slots, membership, row_offsets, tile_items


@triton.jit(do_not_specialize=["first_tile"])
def gram_tiles(
    contexts, norms, rows_table, owners_table, grams, first_tile, per_item, item_stride, row_stride, D,
    NORMALIZE: tl.constexpr, M: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    """Gram matrices of a run of tiles, (tiles, M, M)."""
    local = tl.program_id(0).to(tl.int64)
    rows, owners = item_slots(rows_table, owners_table, rows_table, rows_table, first_tile + local, M, False)
    lengths = tl.load(norms + rows)
    scales = inverse(lengths) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
    offsets = row_offsets(rows, per_item, item_stride, row_stride)
    tile = item_grams(contexts, offsets, owners, scales, D, M, K, EVEN, MAIN)
    cells = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(grams + local * M * M + cells, tile)


@triton.jit(
    do_not_specialize=[
        "score_context_stride",
        "score_query_stride",
        "first_context_tile",
        "n_context_tiles",
        "n_query_tiles",
    ]
)
def scan_forward(
    contexts, context_norms, context_rows, context_owners, context_items, context_counts, context_firsts,
    context_lengths, context_per_item, context_item_stride, context_row_stride,
    queries, query_norms, query_rows, query_owners, query_items, query_counts, query_firsts,
    query_lengths, query_per_item, query_item_stride, query_row_stride,
    pairs, grams, scores, score_context_stride, score_query_stride,
    first_context_tile, n_context_tiles, n_query_tiles, D, slope, lambda_softmax, lambda_lse,
    CONTEXT_COLUMN: tl.constexpr, WHOLE: tl.constexpr, NORMALIZE: tl.constexpr, CLIPS: tl.constexpr,
    NORM: tl.constexpr, SHIFTED: tl.constexpr, POOLING: tl.constexpr, POOL_SHIFTED: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CONTEXT_ITEMS: tl.constexpr, QUERY_ITEMS: tl.constexpr,
    EVEN: tl.constexpr, MAIN: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Scores of all pairs of one tile of contexts and one of queries, or of one listed pair."""
    program = tl.program_id(0)
    if WHOLE:
        context_tile = tl.load(pairs + 2 * program.to(tl.int64) + CONTEXT_COLUMN)
        query_tile = tl.load(pairs + 2 * program.to(tl.int64) + 1 - CONTEXT_COLUMN)
        gram_tile = context_tile
    else:
        gram_tile, query_tile = grouped(program, n_context_tiles, n_query_tiles, 8)
        context_tile = first_context_tile + gram_tile
    c_rows, c_owners = item_slots(context_rows, context_owners, context_firsts, context_lengths, context_tile, M, WHOLE)
    q_rows, q_owners = item_slots(query_rows, query_owners, query_firsts, query_lengths, query_tile, N, WHOLE)
    c_items, _ = tile_items(context_items, context_counts, context_lengths, context_tile, CONTEXT_ITEMS, WHOLE)
    q_items, q_counts = tile_items(query_items, query_counts, query_lengths, query_tile, QUERY_ITEMS, WHOLE)
    n_context_items = tl.sum((c_items >= 0).to(tl.int32))
    n_query_items = tl.sum((q_items >= 0).to(tl.int32))
    c_offsets = row_offsets(c_rows, context_per_item, context_item_stride, context_row_stride)
    q_offsets = row_offsets(q_rows, query_per_item, query_item_stride, query_row_stride)
    c_norms = tl.load(context_norms + c_rows)
    q_norms = tl.where(q_owners >= 0, tl.load(query_norms + q_rows), 0.0)
    c_scales = inverse(c_norms) if NORMALIZE else tl.full((M,), 1.0, tl.float32)
    q_scales = inverse(q_norms) if NORMALIZE else tl.full((N,), 1.0, tl.float32)

    c_members = membership(c_owners, CONTEXT_ITEMS)
    q_members = membership(q_owners, QUERY_ITEMS)
    s, broken = tile_similarities(
        contexts, c_offsets, c_scales, c_norms, c_members, queries, q_offsets, q_scales, q_members, D,
        NORMALIZE, M, N, K, EVEN, CONTEXT_ITEMS, QUERY_ITEMS, MAIN, FINE,
    )  # fmt: skip
    if WHOLE:
        tile_grams = item_grams(contexts, c_offsets, c_owners, c_scales, D, M, K, EVEN, MAIN)
    else:
        cells = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
        tile_grams = tl.load(grams + gram_tile.to(tl.int64) * M * M + cells)
    _, _, _, _, _, relevances = tile_relevances(
        s, tile_grams, contexts, c_offsets, c_scales, c_norms, c_members, c_owners, n_context_items,
        queries, q_offsets, q_scales, q_norms, q_members, q_owners, n_query_items, D, slope, lambda_softmax,
        CLIPS, NORM, SHIFTED, N, CONTEXT_ITEMS, FINE,
    )  # fmt: skip
    tile_scores = pooled(
        relevances, q_members, q_owners, q_counts, n_query_items, lambda_lse, POOLING, POOL_SHIFTED, FINE
    )
    tile_scores = tl.where(broken != 0, float("nan"), tile_scores)
    known = (c_items >= 0)[:, None] & (q_items >= 0)[None, :]
    if WHOLE:
        places = program.to(tl.int64) + tl.zeros((CONTEXT_ITEMS, QUERY_ITEMS), tl.int64)
    else:
        places = c_items[:, None] * score_context_stride + q_items[None, :] * score_query_stride
    tl.store(scores + places, tile_scores, mask=known)
