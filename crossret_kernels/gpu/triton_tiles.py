"""What Triton kernels of several operations share: products of rows, products with 0/1 matrices, safe quotients.

Sums over an item's rows are products with the 0/1 matrix that tells which row is whose, so that items of any lengths
share a tile and none is padded. What is summed so must be finite: 0 × NaN would reach the tile's other items.
"""

import triton
import triton.language as tl


@triton.jit
def product(
    left, left_offsets, right, right_offsets, D,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M, N) of rows of two sides, summed in float32; EVEN says that K divides D."""
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
    """x as the sum of two numbers of 11 and 11 bits, each of which TF32 holds."""
    bits = x.to(tl.int32, bitcast=True)
    head = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return head, x - head


@triton.jit
def share_left(members, x, PRECISION: tl.constexpr):
    """The product of a 0/1 matrix, which TF32 holds, and x: two products where a float32's digits are to be kept."""
    if PRECISION == "tf32x3":
        head, rest = head_and_rest(x)
        sums = tl.dot(members, head, input_precision="tf32")
        return tl.dot(members, rest, sums, input_precision="tf32")
    return tl.dot(members, x, input_precision=PRECISION)


@triton.jit
def decoded(size):
    """The value of a size that `triton_launch.hidden` hides."""
    return (size - 3) >> 1


@triton.jit
def bounded(x, MOST: tl.constexpr):
    """x held within ±MOST; NaN becomes 0. What a maximum with NaN is differs between versions of Triton."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -MOST), MOST), 0.0)


@triton.jit
def inverse(x):
    """1 / x, and 0 where x is 0."""
    return tl.where(x != 0, 1.0 / tl.where(x != 0, x, 1.0), 0.0)
