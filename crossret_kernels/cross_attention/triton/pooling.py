"""Pooling of relevances into scores in Triton, and its gradient: SCAN Eqs. 5–8."""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton.attention import (
    LOG2_E,
    OF_RELEVANCES,
    OF_SQUARES,
    TO_RECOMPUTE,
    int64,
    item_of,
    recompute_cancelled,
)
from crossret_kernels.gpu.triton_tiles import decoded, inverse
from crossret_kernels.gpu.tuning import Attention

LN_2 = tl.constexpr(0.6931471805599453)
LEAST_LOGIT = tl.constexpr(-100.0)  # of "softmax": exp of lower ones is 0, and times these 0 × ∞
MOST_SCORE_GRADIENT = tl.constexpr(1e15)  # from this magnitude on, and of NaN, gradients of a pair are NaN
NOT_FINITE = tl.constexpr(1)  # flag of an item of contexts: a row is not finite
POOLED_CONTEXTS = tl.constexpr(Attention.POOLED_CONTEXTS)
POOLED_QUERIES = tl.constexpr(Attention.POOLED_QUERIES)


@triton.jit
def has_nonfinite_row(side, first, count):
    """1 where a row of an item was not finite, else 0."""
    broken = tl.full((32,), 0, tl.int32)
    for start in range(0, count, 32):
        r = start + tl.arange(0, 32)
        norms = tl.load(side.norms + first + r, mask=r < count, other=0.0)
        broken |= (norms != norms).to(tl.int32)
    return tl.max(broken)


@triton.jit
def pooling_logits(differences, lambda_lse):
    """Logits t = λ (r − greatest) of pooling by "softmax"."""
    return tl.maximum(lambda_lse * differences, LEAST_LOGIT)


@triton.jit
def pooled_relevances(cells, items, query, block, count, run, KIND: tl.constexpr):
    """(Scores (items,); of the relevances the sums of exponentials, maxima, and mean logits): SCAN Eqs. 5–8."""
    begin = query if KIND.LISTED else block
    end = query + 1 if KIND.LISTED else tl.minimum(block + POOLED_CONTEXTS, decoded(run.sizes.n_contexts))
    j = tl.arange(0, POOLED_QUERIES)
    greatest = tl.full((POOLED_CONTEXTS,), float("-inf"), tl.float32)
    sums = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
    means = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
    for start in range(0, count, POOLED_QUERIES):
        there = (start + j < count)[None, :]
        mask = items[:, None] & there
        r = tl.load(cells + start, mask=mask, other=0.0)
        if tl.max(r) == TO_RECOMPUTE:
            recompute_cancelled(run, query, begin, end, KIND)
            r = tl.load(cells + start, mask=mask, other=0.0)
        sums += tl.sum(r, 1)
        greatest = tl.maximum(greatest, tl.max(tl.where(there, r, float("-inf")), 1))
    scores = sums
    if KIND.POOLING == "avg":
        scores = sums / tl.maximum(count, 1).to(tl.float32)
    if KIND.POOLING == "max":
        scores = greatest
    if KIND.POOLING == "lse":
        sums = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
        for start in range(0, count, POOLED_QUERIES):
            there = (start + j < count)[None, :]
            r = tl.load(cells + start, mask=items[:, None] & there, other=0.0)
            logits = run.numbers.lambda_lse * (r - greatest[:, None]) * LOG2_E
            sums += tl.sum(tl.exp2(tl.where(there, logits, float("-inf"))), 1)
        scores = tl.log2(tl.maximum(sums, 1.0)) * LN_2 / run.numbers.lambda_lse + greatest
    if KIND.POOLING == "softmax":
        sums = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
        scores = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
        for start in range(0, count, POOLED_QUERIES):
            there = (start + j < count)[None, :]
            r = tl.load(cells + start, mask=items[:, None] & there, other=0.0)
            differences = tl.where(there, r - greatest[:, None], 0.0)
            t = pooling_logits(differences, run.numbers.lambda_lse)
            e = tl.where(there, tl.exp2(t * LOG2_E), 0.0)
            sums += tl.sum(e, 1)
            scores += tl.sum(e * differences, 1)
            means += tl.sum(e * t, 1)
        sums = tl.maximum(sums, 1.0)
        scores = greatest + scores / sums
        means = means / sums
    return scores, sums, greatest, means


@triton.jit
def score_places(query, block, run, strides, KIND: tl.constexpr):
    """Places of the scores of an item of queries and the items of contexts from `block` on; of a listed pair its own
    alone.

    Returns (mask of the items, places of the scores, places of the first relevances, mask of empty contexts, mask of
    pairs that are not finite).
    """
    lane = tl.arange(0, POOLED_CONTEXTS)
    item = (query if KIND.LISTED else block) + lane
    inside = lane == 0 if KIND.LISTED else item < decoded(run.sizes.n_contexts)
    places = (decoded(strides.first_context) + int64(item)) * decoded(strides.context)
    places += (decoded(strides.first_query) + int64(query)) * decoded(strides.query)
    first, count = item_of(run.queries, query)
    cells = run.kept + (int64(item) * decoded(run.sizes.kept_pitch) + first)[:, None]
    empty = tl.load(run.contexts.items + 4 * item + 1, mask=inside, other=1) == 0
    broken = tl.load(run.contexts.items + 4 * item + 2, mask=inside, other=0) & NOT_FINITE
    broken += has_nonfinite_row(run.queries, first, count)
    return inside, places, cells + tl.arange(0, POOLED_QUERIES)[None, :], empty, broken > 0


@triton.jit(do_not_specialize=["run", "strides"])
def pool(run, scores, strides, KIND: tl.constexpr):
    """Scores of an item of queries and some items of contexts, or of a listed pair."""
    query = tl.program_id(0)
    _first, count = item_of(run.queries, query)
    block = tl.program_id(1) * POOLED_CONTEXTS
    inside, places, cells, empty, broken = score_places(query, block, run, strides, KIND)
    values, _sums, _greatest, _means = pooled_relevances(cells, inside, query, block, count, run, KIND)
    values = tl.where(broken, float("nan"), values)
    tl.store(scores + places, tl.where(empty | (count == 0), run.numbers.empty_score, values), mask=inside)


@triton.jit
def first_greatest(cells, items, count, greatest):
    """First query of every pair that has its maximal relevance."""
    j = tl.arange(0, POOLED_QUERIES)
    best = tl.full((POOLED_CONTEXTS,), 2**30, tl.int32)
    for start in range(0, count, POOLED_QUERIES):
        there = (start + j < count)[None, :]
        r = tl.load(cells + start, mask=items[:, None] & there, other=0.0)
        places = tl.where(there & (r == greatest[:, None]), start + j[None, :], 2**30)
        best = tl.minimum(best, tl.min(places, 1))
    return best


@triton.jit(do_not_specialize=["run", "strides", "later"], do_not_specialize_on_alignment=["grad_scores"])
def relevance_gradients(run, grad_scores, strides, later, KIND: tl.constexpr):
    """∂L/∂r of an item of queries, into a plane of the kept values; adds each row's factor in its own gradient.

    ∂L/∂r is NaN where the pair is not finite and its score has a gradient, or that gradient is NaN. `later`: 1 where an
    earlier run has stored factors.
    """
    query = tl.program_id(0)
    first, count = item_of(run.queries, query)
    plane = decoded(run.sizes.kept_plane)
    j = tl.arange(0, POOLED_QUERIES)
    for start in range(0, count, POOLED_QUERIES):
        there = start + j < count
        along = tl.full((POOLED_QUERIES,), 0, tl.float32)
        for block in range(0, 1 if KIND.LISTED else decoded(run.sizes.n_contexts), POOLED_CONTEXTS):
            inside, places, cells, empty, broken = score_places(query, block, run, strides, KIND)
            grads = tl.load(grad_scores + places, mask=inside, other=0.0)
            fine = (tl.abs(grads) < MOST_SCORE_GRADIENT) & (broken == 0)
            grads = tl.where((grads == 0) | empty, 0.0, tl.where(fine, grads, float("nan")))
            _scores, sums, greatest, means = pooled_relevances(cells, inside, query, block, count, run, KIND)
            mask = inside[:, None] & there[None, :]
            r = tl.load(cells + start, mask=mask, other=0.0)
            shares = tl.full((POOLED_CONTEXTS, POOLED_QUERIES), 1.0, tl.float32)
            if KIND.POOLING == "lse":
                logits = run.numbers.lambda_lse * (r - greatest[:, None]) * LOG2_E
                shares = tl.exp2(tl.where(mask, logits, float("-inf"))) / tl.maximum(sums, 1.0)[:, None]
            elif KIND.POOLING == "softmax":
                t = pooling_logits(tl.where(mask, r - greatest[:, None], 0.0), run.numbers.lambda_lse)
                shares = tl.where(mask, tl.exp2(t * LOG2_E) * (1.0 + t - means[:, None]) / sums[:, None], 0.0)
            elif KIND.POOLING == "max":
                best = first_greatest(cells, inside, count, greatest)
                shares = (start + j[None, :] == best[:, None]).to(tl.float32)
            elif KIND.POOLING == "avg":
                shares = shares / count.to(tl.float32)
            relevance_grads = grads[:, None] * shares
            moves = tl.load(cells + start + OF_SQUARES * plane, mask=mask, other=0.0) != 0
            if not KIND.PROJECTS:
                along -= tl.sum(tl.where(moves, relevance_grads * r, 0.0), 0)
            tl.store(cells + start + OF_RELEVANCES * plane, relevance_grads, mask=mask)
        rows = run.queries.self_gradients + first + start + j
        before = tl.load(rows, mask=start + j < count * later, other=0.0)
        tl.store(rows, before + along, mask=there)


@triton.jit
def pooled(r, here, lambda_lse, KIND: tl.constexpr):
    """The score of relevances (Q,), step 7 of docs/kernels.md §1; NaN stays NaN in a maximum, too."""
    if KIND.POOLING == "lse":
        x = tl.where(here, r * lambda_lse, -float("inf"))
        greatest = tl.max(x, 0)
        greatest = tl.where(greatest == -float("inf"), 0.0, greatest)  # no query
        total = tl.sum(tl.exp(x - greatest), 0)
        return (tl.log(tl.where(total == 0, 1.0, total)) + greatest) / lambda_lse
    if KIND.POOLING == "softmax":
        greatest = tl.max(tl.where(here, r, -float("inf")), 0)
        differences = tl.where(here, r - greatest, 0.0)
        e = tl.where(here, tl.exp(pooling_logits(differences, lambda_lse)), 0.0)
        return tl.sum(e * differences, 0) * inverse(tl.sum(e, 0)) + tl.where(greatest == -float("inf"), 0.0, greatest)
    if KIND.POOLING == "max":
        return tl.max(tl.where(here, r, -float("inf")), 0) + tl.sum(tl.where(here, r * 0.0, 0.0), 0)
    total = tl.sum(tl.where(here, r, 0.0), 0)
    return total * inverse(tl.sum(here.to(tl.float32), 0)) if KIND.POOLING == "avg" else total


@triton.jit
def pool_gradients(r, here, grad, lambda_lse, KIND: tl.constexpr):
    """∂L/∂r of every query from the score's gradient."""
    if KIND.POOLING == "sum":
        share = here.to(tl.float32)
    elif KIND.POOLING == "avg":
        share = here.to(tl.float32) * inverse(tl.sum(here.to(tl.float32), 0))
    else:
        greatest = tl.max(tl.where(here, r, -float("inf")), 0)
        greatest = tl.where(greatest == -float("inf"), 0.0, greatest)
        if KIND.POOLING == "max":
            share = tl.where(here & (r == greatest), 1.0, 0.0)
        else:
            share = tl.where(here, tl.exp((r - greatest) * lambda_lse), 0.0)
        share = share * inverse(tl.sum(share, 0))
        if KIND.POOLING == "softmax":
            t = pooling_logits(tl.where(here, r - greatest, 0.0), lambda_lse)
            share = share * (1.0 + t - tl.sum(share * t, 0))
    return share * grad
