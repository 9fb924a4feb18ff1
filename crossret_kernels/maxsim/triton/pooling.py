"""Scores of Sum-Max in Triton from maxima that lie in memory, for poolings that a tile of queries does not make itself.

The maxima of a window, of items of contexts or listed pairs (`forward.find`), are 1 / rows of similarities. A program
takes some rows of them with one item of queries, or some listed pairs each with its own. Of "max" and "topk" the last
that counts is found, one after the other: a bound that tells of every maximum whether it counts.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.gpu.triton_launch import encoded_sizes, launch
from crossret_kernels.gpu.triton_tiles import decoded, inverse
from crossret_kernels.gpu.tuning import SumMax
from crossret_kernels.maxsim.triton.call import KernelSide, MaxSimCall, MaxSimPlan, SideSizes
from crossret_kernels.maxsim.triton.forward import start_of
from crossret_kernels.maxsim.triton.found import Found, Strides
from crossret_kernels.maxsim.triton.maxima import BEYOND, LN_2, LOG2_E, disordered, ordered
from crossret_kernels.maxsim.triton.rows import item_rows

LEAST_LOGIT = tl.constexpr(-100.0)  # of "softmax": exp of lower ones is 0, and times these 0 × ∞
NONE = tl.constexpr(-(2**31))  # below what `ordered` makes of any number
HIGHEST = tl.constexpr(2**31 - 1)  # what it makes of NaN


class PoolingNumbers(NamedTuple):
    slope: float
    lambda_lse: float


class PoolingSizes(NamedTuple):
    """Numbers that kernels read at run time.

    Attributes:
        strides: of `Found`.
        first_item, n_rows: rows of maxima, and the first's item of contexts, or its place among listed pairs.
        n_queries: items of them.
        top: maxima that "topk" adds up, 1 of "max".
    """

    queries: SideSizes
    strides: Strides
    first_item: int
    n_rows: int
    n_queries: int
    top: int


class PoolingKind(NamedTuple):
    """Specialisation of the kernels: ROWS of maxima and COLUMNS of them at a time; SOFT ones are clipped already."""

    LISTED: bool
    CONTEXT_COLUMN: int
    POOLING: str
    CLIPS: bool
    SOFT: bool
    ROWS: int
    COLUMNS: int
    UNIT: int


def pool(
    call: MaxSimCall, plan: MaxSimPlan, queries: KernelSide, results: Found, strides: Strides, first: int, count: int,
    pairs: Tensor | None, *, gradients: bool,
) -> None:  # fmt: skip
    """Stores scores of what was found of `count` items of contexts from the first on, or of the pairs; with `gradients`
    the maxima's weights instead.
    """
    options = call.options
    kind = PoolingKind(
        pairs is not None, call.context_column, options.pooling, options.clip_slope != 1 and not call.soft,
        call.soft, SumMax.POOLED_ROWS, SumMax.POOLED_COLUMNS, call.unit,
    )  # fmt: skip
    top = options.top if options.pooling == "topk" else 1
    sizes = encoded_sizes(PoolingSizes(call.sizes[1], strides, first, count, call.n_queries, min(top, 2**29)))
    numbers = PoolingNumbers(options.clip_slope, options.lambda_lse)
    pair_tensor = plan.tables.groups if pairs is None else pairs
    programs = -(-count // SumMax.POOLED_ROWS) * (1 if pairs is not None else call.n_queries)
    key = call.key(results.indices.dtype, max(strides) >= 2**30 - 2)
    kernel = pool_weights if gradients else pool_maxima
    launch(kernel, (programs, 1, 1), (queries, plan.tables, pair_tensor, results, numbers, sizes), kind, key)


@triton.jit
def rows_of_maxima(queries, tables, pairs, sizes, KIND: tl.constexpr):
    """(Rows, which there are, their items of queries, where their maxima begin, how many each has)."""
    program = tl.program_id(0)
    block = program if KIND.LISTED else program // decoded(sizes.n_queries)
    row = block * KIND.ROWS + tl.arange(0, KIND.ROWS)
    inside = row < decoded(sizes.n_rows)
    begins = row.to(tl.int64) * decoded(sizes.strides.index_context)
    if KIND.LISTED:
        item = tl.load(pairs + 2 * row.to(tl.int64) + 1 - KIND.CONTEXT_COLUMN, mask=inside, other=0)
    else:
        item = tl.full((KIND.ROWS,), 0, tl.int64) + program % decoded(sizes.n_queries)
        begins += start_of(tables, item, sizes.strides.index_query)
    _, _, counts = item_rows(queries, item, sizes.queries, KIND.UNIT)
    return row, inside, item, begins, tl.where(inside, counts, 0)


@triton.jit
def clipped_maxima(results, begins, counts, start, numbers, KIND: tl.constexpr):
    """(Maxima (ROWS, COLUMNS) from `start` on, clipped; their clip's derivatives; which there are; their places)."""
    place = start + tl.arange(0, KIND.COLUMNS)
    there = place[None, :] < counts[:, None]
    x = tl.load(results.maxima + begins[:, None] + place[None, :], mask=there, other=0.0)
    slopes = tl.full((KIND.ROWS, KIND.COLUMNS), 1.0, tl.float32)
    if KIND.CLIPS:
        slopes = tl.where(x > 0, 1.0, numbers.slope)
        x = x * slopes
    return x, slopes, there, place


@triton.jit
def last_that_counts(results, begins, counts, numbers, sizes, KIND: tl.constexpr):
    """Sum of the `top` largest maxima of each row, and the order and place of the last of them: (ROWS,) each."""
    total = tl.full((KIND.ROWS,), 0.0, tl.float32)
    last = tl.full((KIND.ROWS,), HIGHEST, tl.int32)
    last_place = tl.full((KIND.ROWS,), -1, tl.int32)
    for _ in range(tl.minimum(decoded(sizes.top), tl.max(counts, 0))):
        best = tl.full((KIND.ROWS,), NONE, tl.int32)
        best_place = tl.full((KIND.ROWS,), BEYOND, tl.int32)
        for start in range(0, tl.max(counts, 0), KIND.COLUMNS):
            x, _slopes, there, place = clipped_maxima(results, begins, counts, start, numbers, KIND)
            order = ordered(x)
            behind = (order == last[:, None]) & (place[None, :] > last_place[:, None])
            remaining = tl.where(there & ((order < last[:, None]) | behind), order, NONE)
            greatest = tl.max(remaining, 1)
            first = tl.min(tl.where((remaining == greatest[:, None]) & (remaining > NONE), place[None, :], BEYOND), 1)
            best_place = tl.where(greatest > best, first, best_place)
            best = tl.maximum(best, greatest)
        exists = best > NONE
        total += tl.where(exists, disordered(best), 0.0)
        last = tl.where(exists, best, last)
        last_place = tl.where(exists, best_place, last_place)
    return total, last, last_place


@triton.jit
def exponentials(results, begins, counts, numbers, KIND: tl.constexpr):
    """(Greatest maximum of each row; Σ e; Σ e (m − greatest); Σ e t) with t = λ (m − greatest), e = exp(t)."""
    greatest = tl.full((KIND.ROWS,), NONE, tl.int32)
    for start in range(0, tl.max(counts, 0), KIND.COLUMNS):
        x, _slopes, there, _place = clipped_maxima(results, begins, counts, start, numbers, KIND)
        greatest = tl.maximum(greatest, tl.max(tl.where(there, ordered(x), NONE), 1))
    top = tl.where(counts > 0, disordered(greatest), 0.0)
    sums = tl.full((KIND.ROWS,), 0.0, tl.float32)
    difference_sums = tl.full((KIND.ROWS,), 0.0, tl.float32)
    logit_sums = tl.full((KIND.ROWS,), 0.0, tl.float32)
    for start in range(0, tl.max(counts, 0), KIND.COLUMNS):
        x, _slopes, there, _place = clipped_maxima(results, begins, counts, start, numbers, KIND)
        t, e = exponential(x, top, there, numbers)
        sums += tl.sum(e, 1)
        difference_sums += tl.sum(e * tl.where(there, x - top[:, None], 0.0), 1)
        logit_sums += tl.sum(e * t, 1)
    return top, sums, difference_sums, logit_sums


@triton.jit
def exponential(x, top, there, numbers):
    t = tl.where(there, numbers.lambda_lse * (x - top[:, None]), LEAST_LOGIT)
    t = tl.maximum(t, LEAST_LOGIT, propagate_nan=tl.PropagateNan.ALL)
    return t, tl.where(there, tl.exp2(t * LOG2_E), 0.0)


@triton.jit(do_not_specialize=["sizes", "numbers"], do_not_specialize_on_alignment=["pairs"])
def pool_maxima(queries, tables, pairs, results, numbers, sizes, KIND: tl.constexpr):
    """Scores of some items of contexts and one of queries, or of some listed pairs."""
    row, inside, item, begins, counts = rows_of_maxima(queries, tables, pairs, sizes, KIND)
    if KIND.POOLING == "lse" or KIND.POOLING == "softmax":
        top, sums, difference_sums, _logit_sums = exponentials(results, begins, counts, numbers, KIND)
        if KIND.POOLING == "lse":
            scores = top + tl.log2(tl.maximum(sums, 1.0)) * LN_2 / numbers.lambda_lse
        else:
            scores = top + difference_sums * inverse(sums)
    elif KIND.POOLING == "max" or KIND.POOLING == "topk":
        scores, _last, _last_place = last_that_counts(results, begins, counts, numbers, sizes, KIND)
    else:
        scores = tl.full((KIND.ROWS,), 0.0, tl.float32)
        for start in range(0, tl.max(counts, 0), KIND.COLUMNS):
            x, _slopes, there, _place = clipped_maxima(results, begins, counts, start, numbers, KIND)
            scores += tl.sum(tl.where(there, x, 0.0), 1)
        if KIND.POOLING == "avg":
            scores /= tl.maximum(counts, 1).to(tl.float32)
    cells = decoded(sizes.first_item) + row.to(tl.int64)
    if not KIND.LISTED:
        cells = cells * decoded(sizes.strides.score_context)
        cells += item * decoded(sizes.strides.score_query)
    tl.store(results.scores + cells, scores, mask=inside)


@triton.jit(do_not_specialize=["sizes", "numbers"], do_not_specialize_on_alignment=["pairs"])
def pool_weights(queries, tables, pairs, results, numbers, sizes, KIND: tl.constexpr):
    """∂score / ∂maximum of the same, but for the average's count, in the places of the maxima."""
    _row, _inside, _item, begins, counts = rows_of_maxima(queries, tables, pairs, sizes, KIND)
    if KIND.POOLING == "lse" or KIND.POOLING == "softmax":
        top, sums, _difference_sums, logit_sums = exponentials(results, begins, counts, numbers, KIND)
        means = logit_sums * inverse(sums)
    elif KIND.POOLING == "max" or KIND.POOLING == "topk":
        _scores, last, last_place = last_that_counts(results, begins, counts, numbers, sizes, KIND)
    for start in range(0, tl.max(counts, 0), KIND.COLUMNS):
        x, weights, there, place = clipped_maxima(results, begins, counts, start, numbers, KIND)
        if KIND.POOLING == "lse" or KIND.POOLING == "softmax":
            t, e = exponential(x, top, there, numbers)
            weights *= e * inverse(sums)[:, None]
            if KIND.POOLING == "softmax":
                weights *= 1.0 + t - means[:, None]
        elif KIND.POOLING == "max" or KIND.POOLING == "topk":
            order = ordered(x)
            within = (order == last[:, None]) & (place[None, :] <= last_place[:, None])
            weights = tl.where((order > last[:, None]) | within, weights, 0.0)
        if KIND.SOFT:
            weights *= tl.load(results.weights + begins[:, None] + place[None, :], mask=there, other=0.0)
        tl.store(results.weights + begins[:, None] + place[None, :], weights, mask=there)
