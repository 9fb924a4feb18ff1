"""Pooling of relevances into scores in Triton, and its gradient: SCAN Eqs. 5–8."""

import triton
import triton.language as tl

from crossret_kernels.cross_attention.triton.attention import LOG2_E, OF_RELEVANCES, OF_SQUARES, item_of, wide
from crossret_kernels.cross_attention.triton.relevances import CANCELS, mend
from crossret_kernels.gpu.triton_tiles import inverse, shown
from crossret_kernels.gpu.tuning import Attention

LN_2 = tl.constexpr(0.6931471805599453)
LEAST_LOGIT = tl.constexpr(-100.0)  # of "softmax", beside a greatest of 0: exp of lower ones times these would be 0 × ∞
MOST_SCORE_GRADIENT = tl.constexpr(1e15)  # beyond it, NaN among them, gradients of a pair are NaN
BROKEN = tl.constexpr(1)  # what is told of an item of contexts beside its rows
POOLED_CONTEXTS = tl.constexpr(Attention.POOLED_CONTEXTS)
POOLED_QUERIES = tl.constexpr(Attention.POOLED_QUERIES)


@triton.jit
def broken_item(side, first, count):
    """Whether one of an item's rows was not finite."""
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
    """(scores (items,); of exponentials the sums, the greatest relevances, the mean logits): SCAN Eqs. 5–8."""
    begin = query if KIND.LISTED else block
    end = query + 1 if KIND.LISTED else tl.minimum(block + POOLED_CONTEXTS, shown(run.sizes.n_contexts))
    j = tl.arange(0, POOLED_QUERIES)
    greatest = tl.full((POOLED_CONTEXTS,), float("-inf"), tl.float32)
    sums = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
    means = tl.full((POOLED_CONTEXTS,), 0, tl.float32)
    for start in range(0, count, POOLED_QUERIES):
        there = (start + j < count)[None, :]
        known = items[:, None] & there
        r = tl.load(cells + start, mask=known, other=0.0)
        if tl.max(r) == CANCELS:
            mend(run, query, begin, end, KIND)
            r = tl.load(cells + start, mask=known, other=0.0)
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
    """Of an item of queries and those of contexts from `block` on, of a listed pair its own only.

    (Which of them there are, where their scores stand and their relevances, of contexts whether they are empty, whether
    one of either is not finite).
    """
    lane = tl.arange(0, POOLED_CONTEXTS)
    item = (query if KIND.LISTED else block) + lane
    inside = lane == 0 if KIND.LISTED else item < shown(run.sizes.n_contexts)
    places = (shown(strides.first_context) + wide(item)) * shown(strides.context)
    places += (shown(strides.first_query) + wide(query)) * shown(strides.query)
    first, count = item_of(run.queries, query)
    cells = run.kept + (wide(item) * shown(run.sizes.kept_pitch) + first)[:, None]
    empty = tl.load(run.contexts.items + 4 * item + 1, mask=inside, other=1) == 0
    broken = tl.load(run.contexts.items + 4 * item + 2, mask=inside, other=0) & BROKEN
    broken += broken_item(run.queries, first, count)
    return inside, places, cells + tl.arange(0, POOLED_QUERIES)[None, :], empty, broken > 0


@triton.jit(do_not_specialize=["run", "strides"])
def pool(run, scores, strides, KIND: tl.constexpr):
    """Scores of an item of queries and some items of contexts, or of a listed pair."""
    query = tl.program_id(0)
    _first, count = item_of(run.queries, query)
    block = tl.program_id(1) * POOLED_CONTEXTS
    inside, places, cells, empty, broken = score_places(query, block, run, strides, KIND)
    found, _sums, _greatest, _means = pooled_relevances(cells, inside, query, block, count, run, KIND)
    found = tl.where(broken, float("nan"), found)
    tl.store(scores + places, tl.where(empty | (count == 0), run.numbers.empty_score, found), mask=inside)


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


@triton.jit(do_not_specialize=["run", "strides", "later"], do_not_specialize_on_alignment=["grad_scores"])
def relevance_gradients(run, grad_scores, strides, later, KIND: tl.constexpr):
    """∂L/∂r of an item of queries, in a plane of what is kept, and what each row gets of itself; a `later` run's adds.

    ∂L/∂r is NaN of a pair whose gradient is no number, or which has one and is not finite.
    """
    query = tl.program_id(0)
    first, count = item_of(run.queries, query)
    plane = shown(run.sizes.kept_plane)
    j = tl.arange(0, POOLED_QUERIES)
    for start in range(0, count, POOLED_QUERIES):
        there = start + j < count
        along = tl.full((POOLED_QUERIES,), 0, tl.float32)
        for block in range(0, 1 if KIND.LISTED else shown(run.sizes.n_contexts), POOLED_CONTEXTS):
            inside, places, cells, empty, broken = score_places(query, block, run, strides, KIND)
            grads = tl.load(grad_scores + places, mask=inside, other=0.0)
            fine = (tl.abs(grads) < MOST_SCORE_GRADIENT) & (broken == 0)
            grads = tl.where((grads == 0) | empty, 0.0, tl.where(fine, grads, float("nan")))
            _scores, sums, greatest, means = pooled_relevances(cells, inside, query, block, count, run, KIND)
            known = inside[:, None] & there[None, :]
            r = tl.load(cells + start, mask=known, other=0.0)
            shares = tl.full((POOLED_CONTEXTS, POOLED_QUERIES), 1.0, tl.float32)
            if KIND.POOLING == "lse":
                logits = run.numbers.lambda_lse * (r - greatest[:, None]) * LOG2_E
                shares = tl.exp2(tl.where(known, logits, float("-inf"))) / tl.maximum(sums, 1.0)[:, None]
            elif KIND.POOLING == "softmax":
                t = pooling_logits(tl.where(known, r - greatest[:, None], 0.0), run.numbers.lambda_lse)
                shares = tl.where(known, tl.exp2(t * LOG2_E) * (1.0 + t - means[:, None]) / sums[:, None], 0.0)
            elif KIND.POOLING == "max":
                best = first_greatest(cells, inside, count, greatest)
                shares = (start + j[None, :] == best[:, None]).to(tl.float32)
            elif KIND.POOLING == "avg":
                shares = shares / count.to(tl.float32)
            of_relevances = grads[:, None] * shares
            moves = tl.load(cells + start + OF_SQUARES * plane, mask=known, other=0.0) != 0
            along -= tl.sum(tl.where(moves, of_relevances * r, 0.0), 0)
            tl.store(cells + start + OF_RELEVANCES * plane, of_relevances, mask=known)
        rows = run.queries.own + first + start + j
        before = tl.load(rows, mask=start + j < count * later, other=0.0)
        tl.store(rows, before + along, mask=there)


@triton.jit
def pooled(r, here, lambda_lse, KIND: tl.constexpr):
    """The score of relevances (Q,): step 7. A NaN is not lost in a maximum."""
    if KIND.POOLING == "lse":
        x = tl.where(here, r * lambda_lse, -float("inf"))
        most = tl.max(x, 0)
        most = tl.where(most == -float("inf"), 0.0, most)  # of no query
        total = tl.sum(tl.exp(x - most), 0)
        return (tl.log(tl.where(total == 0, 1.0, total)) + most) / lambda_lse
    if KIND.POOLING == "softmax":
        most = tl.max(tl.where(here, r, -float("inf")), 0)
        differences = tl.where(here, r - most, 0.0)
        e = tl.where(here, tl.exp(pooling_logits(differences, lambda_lse)), 0.0)
        return tl.sum(e * differences, 0) * inverse(tl.sum(e, 0)) + tl.where(most == -float("inf"), 0.0, most)
    if KIND.POOLING == "max":
        return tl.max(tl.where(here, r, -float("inf")), 0) + tl.sum(tl.where(here, r * 0.0, 0.0), 0)
    total = tl.sum(tl.where(here, r, 0.0), 0)
    return total * inverse(tl.sum(here.to(tl.float32), 0)) if KIND.POOLING == "avg" else total


@triton.jit
def pool_gradients(r, here, grad, lambda_lse, KIND: tl.constexpr):
    """∂L/∂r of every query from ∂L/∂ the score."""
    if KIND.POOLING == "sum":
        share = here.to(tl.float32)
    elif KIND.POOLING == "avg":
        share = here.to(tl.float32) * inverse(tl.sum(here.to(tl.float32), 0))
    else:
        most = tl.max(tl.where(here, r, -float("inf")), 0)
        most = tl.where(most == -float("inf"), 0.0, most)
        if KIND.POOLING == "max":
            share = tl.where(here & (r == most), 1.0, 0.0)
        else:
            share = tl.where(here, tl.exp((r - most) * lambda_lse), 0.0)
        share = share * inverse(tl.sum(share, 0))
        if KIND.POOLING == "softmax":
            t = pooling_logits(tl.where(here, r - most, 0.0), lambda_lse)
            share = share * (1.0 + t - tl.sum(share * t, 0))
    return share * grad
