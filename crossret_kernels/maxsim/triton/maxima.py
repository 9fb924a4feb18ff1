"""Maxima in tiles of Sum-Max in Triton, of rows in a column and of columns of an item: with the places that have them,
or soft ones, which are the greatest of numbers x and the sum of all exp((x − greatest) / τ).
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
BEYOND = tl.constexpr(2**30)  # no place of a context


@triton.jit
def better(a, a_places, b, b_places, INDEX: tl.constexpr):
    """The greater of a and b and, where INDEX, its place: a's where both are equal. NaN is greatest."""
    if INDEX:
        greater = (a == a) & ~(b <= a)
        return tl.where(greater, b, a), tl.where(greater, b_places, a_places)
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL), a_places


@triton.jit
def parted(x, NEAR: tl.constexpr):
    """(Columns whose number has no bit NEAR, those that are NEAR behind them), each in half as many columns."""
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    a, b = tl.split(tl.permute(tl.reshape(x, (M, N // (2 * NEAR), 2, NEAR)), (0, 1, 3, 2)))
    return tl.reshape(a, (M, N // 2)), tl.reshape(b, (M, N // 2))


@triton.jit
def best_of_depth(s, COLUMNS: tl.constexpr, INDEX: tl.constexpr):
    """(M, COLUMNS): the best of the rows that have passed through a column together and, where INDEX, which it is."""
    which = tl.full((s.shape[0], s.shape[1]), 0, tl.int32)
    for bit in tl.static_range(3):
        if s.shape[1] > COLUMNS:
            a, b = parted(s, COLUMNS)
            a_which, b_which = parted(which, COLUMNS)
            s, which = better(a, a_which, b, b_which + (1 << bit), INDEX)
    return s, which


@triton.jit
def ordered(x):
    """int32 that are ordered as x is; NaN, of any kind, is greatest, and zeros are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@triton.jit
def disordered(order):
    """The inverse of `ordered`."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def best_of_columns(best, depths, bits, temperature, SOFT: tl.constexpr, INDEX: tl.constexpr):
    """The best of all columns of an item, in each; of SOFT its sum, or where INDEX the first place that has it."""
    M: tl.constexpr = best.shape[0]
    COLUMNS: tl.constexpr = best.shape[1]
    order = best if SOFT else ordered(best)
    for bit in tl.static_range(7):
        if 1 << bit < COLUMNS:  # noqa: SIM102 (known when it is compiled)
            if bits == bit:
                shape: tl.constexpr = (M, COLUMNS >> bit, 1 << bit)
                cells = tl.reshape(order, shape)
                top = tl.broadcast_to(tl.max(cells, 1, keep_dims=True), shape)
                if SOFT:
                    shares = tl.reshape(depths, shape) * exponential(cells, top, temperature)
                    depths = tl.reshape(tl.broadcast_to(tl.sum(shares, 1, keep_dims=True), shape), (M, COLUMNS))
                elif INDEX:
                    first = tl.min(tl.where(cells == top, tl.reshape(depths, shape), BEYOND), 1, keep_dims=True)
                    depths = tl.reshape(tl.broadcast_to(first, shape), (M, COLUMNS))
                order = tl.reshape(top, (M, COLUMNS))
    return order if SOFT else disordered(order), depths


@triton.jit
def add_exponentials(best, sums, s, temperature):
    """(M, COLUMNS): soft maxima with the rows (M, N) that pass through their columns next. Sums have what is NaN."""
    shape: tl.constexpr = (s.shape[0], s.shape[1] // best.shape[1], best.shape[1])
    cells = tl.reshape(s, shape)
    greatest = tl.maximum(best, tl.max(cells, 1))
    sums = sums * exponential(best, greatest, temperature)
    return greatest, sums + tl.sum(exponential(cells, greatest[:, None, :], temperature), 1)


@triton.jit
def exponential(x, greatest, temperature):
    """exp((x − greatest) / τ): 0 for x = −∞, whatever the greatest is, and NaN for NaN."""
    return tl.exp2((x - tl.where(greatest > float("-inf"), greatest, 0.0)) * (LOG2_E / temperature))
