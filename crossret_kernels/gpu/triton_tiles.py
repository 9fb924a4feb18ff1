"""Functions of several operations' Triton kernels: products of rows, products with 0/1 matrices, safe quotients.

Sums over an item's rows are products with a 0/1 membership matrix, so that items of any lengths share a tile without
padding. Summands are finite: 0 × NaN would reach the tile's other items.
"""

import triton
import triton.language as tl


@triton.jit
def product(
    left, left_offsets, right, right_offsets, D,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M, N) products of rows of two sides, summed in float32; EVEN: K divides D."""
    k = tl.arange(0, K)
    left_cells = left + left_offsets[:, None] + k[None, :]
    right_cells = right + right_offsets[:, None] + k[None, :]
    sums = tl.full((M, N), 0, tl.float32)
    for d in range(0, D, K):
        if EVEN:
            a = tl.load(left_cells + d)
            b = tl.load(right_cells + d)
        else:
            a = tl.load(left_cells + d, mask=(d + k < D)[None, :], other=0.0)
            b = tl.load(right_cells + d, mask=(d + k < D)[None, :], other=0.0)
        sums = tl.dot(a, tl.trans(b), sums, input_precision=PRECISION)
    return sums


@triton.jit
def head_and_rest(x):
    """x as a sum of two numbers of 11 bits each, which TF32 holds."""
    bits = x.to(tl.int32, bitcast=True)
    head = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return head, x - head


@triton.jit
def share_left(members, x, PRECISION: tl.constexpr):
    """Product of a 0/1 matrix, exact in TF32, with x: two products where all digits of float32 x are kept."""
    if PRECISION == "tf32x3":
        head, rest = head_and_rest(x)
        sums = tl.dot(members, head, input_precision="tf32")
        return tl.dot(members, rest, sums, input_precision="tf32")
    return tl.dot(members, x, input_precision=PRECISION)


@triton.jit
def decoded(size):
    """A size that `triton_launch.encoded` encoded."""
    return (size - 3) >> 1


@triton.jit
def bounded(x, MOST: tl.constexpr):
    """x clamped to ±MOST, and 0 for NaN: versions of Triton differ on maxima with NaN."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -MOST), MOST), 0.0)


@triton.jit
def logistic(x):
    """1 / (1 + e^(−x)), which does not overflow."""
    u = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, u, 1.0) / (1.0 + u)


@triton.jit
def inverse(x):
    """1 / x, and 0 for 0."""
    return tl.where(x != 0, 1.0 / tl.where(x != 0, x, 1.0), 0.0)
