"""Attended vectors, weights and relevances of listed pairs in Triton: one program a pair, reading its rows twice."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.cross_attention.triton.pair import (
    K,
    PairCall,
    attention,
    context_rows,
    cosines,
    counted_scales,
    load_columns,
    normed,
    pair_items,
    query_rows,
    scales,
)
from crossret_kernels.cross_attention.triton.pooling import pooled
from crossret_kernels.gpu.triton_launch import launch

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
    both = c_here[:, None] & q_here[None, :]
    # Similarities and lengths.
    s = tl.full((KIND.C, KIND.Q), 0, tl.float32)
    c_squares = tl.full((KIND.C,), 0, tl.float32)
    q_squares = tl.full((KIND.Q,), 0, tl.float32)
    for d in range(0, D, K):
        x = load_columns(contexts.features, c_rows, c_here, d, D, KIND)
        y = load_columns(queries.features, q_rows, q_here, d, D, KIND)
        s = tl.dot(x, tl.trans(y), s, input_precision=KIND.PRECISION)
        if KIND.NORMALIZE:
            c_squares += tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
        q_squares += tl.sum(y.to(tl.float32) * y.to(tl.float32), 1)
    _, c_scale = scales(c_squares, KIND)
    lengths, q_scale = counted_scales(q_squares, KIND)
    s = s * c_scale[:, None] * q_scale[None, :]
    # Weights, then attended vectors by columns.
    _, _, n = normed(s, both, slope, KIND)
    p = attention(n, both, setting, KIND)
    weighted = tl.trans(p * c_scale[:, None])
    squares = tl.full((KIND.Q,), 0, tl.float32)
    q_stored = q_place < query_slots
    cells = (pair * query_slots + q_place) * D
    for d in range(0, D, K):
        x = load_columns(contexts.features, c_rows, c_here, d, D, KIND).to(tl.float32)
        a = tl.dot(weighted, x, input_precision=KIND.SECOND)
        squares += tl.sum(a * a, 1)
        if KIND.ATTENDED:
            k = d + tl.arange(0, K)
            inside = q_stored[:, None] if KIND.EVEN else q_stored[:, None] & (k < D)[None, :]
            tl.store(attended + cells[:, None] + k[None, :], tl.where(q_here[:, None], a, 0.0), mask=inside)
    # Relevances and score.
    r, _, _ = cosines(tl.sum(p * s, 0), squares, lengths)
    r = tl.where(q_here, r, 0.0)
    tl.store(relevances + pair * query_slots + q_place, r, mask=q_stored)
    cells = (pair * query_slots + q_place)[None, :] * context_slots + c_place[:, None]
    tl.store(weights + cells, p, mask=q_stored[None, :] & (c_place < context_slots)[:, None])
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
