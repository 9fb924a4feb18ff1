"""What Triton kernels over tiles of whole items share: who stands in a tile, its product, sums and maxima by item.

A tile's rows are slots of one side, its columns slots of the other; `tile_plan` says whose. Sums over an item's slots
are products with the 0/1 matrix that tells which slot is whose, so that items of any lengths share a tile and none is
padded. What is summed so must be finite: 0 × NaN would reach the tile's other items.
"""

import triton
import triton.language as tl


@triton.jit
def block_slots(
    rows_table, owners_table, first_rows, lengths, tile, size, start, COUNT: tl.constexpr, WHOLE: tl.constexpr
):
    """(rows (COUNT,), owners (COUNT,)), int32, of slots of a tile of `size` from `start` on.

    Of a tile of the plan; where WHOLE, of one item, named by `tile`.
    """
    slot = start + tl.arange(0, COUNT)
    if WHOLE:
        inside = slot < tl.load(lengths + tile)
        rows = tl.load(first_rows + tile) + tl.where(inside, slot, 0)
        owners = tl.where(inside, 0, -1)
    else:
        rows = tl.load(rows_table + tile * size + slot)
        owners = tl.load(owners_table + tile * size + slot)
    return rows, owners


@triton.jit
def item_slots(rows_table, owners_table, first_rows, lengths, tile, SIZE: tl.constexpr, WHOLE: tl.constexpr):
    """(rows, owners) of all slots of a tile that is one block."""
    return block_slots(rows_table, owners_table, first_rows, lengths, tile, SIZE, 0, SIZE, WHOLE)


@triton.jit
def tile_items(items_table, counts_table, lengths, tile, SEGMENTS: tl.constexpr, WHOLE: tl.constexpr):
    """(items (SEGMENTS,) int64, −1 where there is none, and their lengths) of a tile."""
    place = tl.arange(0, SEGMENTS)
    if WHOLE:
        items = tl.where(place == 0, tile, -1)
        counts = tl.where(place == 0, tl.load(lengths + tile), 0)
    else:
        items = tl.load(items_table + tile * SEGMENTS + place)
        counts = tl.load(counts_table + tile * SEGMENTS + place)
    return items.to(tl.int64), counts


@triton.jit
def membership(owners, SEGMENTS: tl.constexpr):
    """(slots, SEGMENTS): 1 where the slot belongs to the item, 0 elsewhere and in empty slots."""
    return (owners[:, None] == tl.arange(0, SEGMENTS)[None, :]).to(tl.float32)


@triton.jit
def row_offsets(rows, per_item, item_stride, row_stride):
    """Where rows begin among a side's elements: `per_item` of them lie `row_stride` apart, items `item_stride`.

    Rows are counted in 32 bits, in which a division takes a third of the instructions; elements in 64.
    """
    items = rows // per_item
    return items.to(tl.int64) * item_stride + (rows - items * per_item).to(tl.int64) * row_stride


@triton.jit
def product(
    left, left_offsets, right, right_offsets, D,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M, N) of rows of two sides, summed in float32; EVEN says that K divides D."""
    k = tl.arange(0, K)
    left_cells = left + left_offsets[:, None] + k[None, :]
    right_cells = right + right_offsets[:, None] + k[None, :]
    sums = tl.zeros((M, N), tl.float32)
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
def share_right(x, members, PRECISION: tl.constexpr):
    """The product of x and a 0/1 matrix, likewise."""
    if PRECISION == "tf32x3":
        head, rest = head_and_rest(x)
        sums = tl.dot(head, members, input_precision="tf32")
        return tl.dot(rest, members, sums, input_precision="tf32")
    return tl.dot(x, members, input_precision=PRECISION)


@triton.jit
def sum_rows(x, members, PRECISION: tl.constexpr):
    """Sums over each item's rows: (rows, columns) by members (rows, SEGMENTS) to (SEGMENTS, columns)."""
    return share_left(tl.trans(members), x, PRECISION)


@triton.jit
def sum_columns(x, members, PRECISION: tl.constexpr):
    """Sums over each item's columns: (rows, columns) by members (columns, SEGMENTS) to (rows, SEGMENTS)."""
    return share_right(x, members, PRECISION)


@triton.jit
def to_rows(x, members, PRECISION: tl.constexpr):
    """What each item has, to all of its rows: (SEGMENTS, columns) to (rows, columns), zero in empty slots."""
    return share_left(members, x, PRECISION)


@triton.jit
def to_columns(x, members, PRECISION: tl.constexpr):
    """What each item has, to all of its columns: (rows, SEGMENTS) to (rows, columns), zero in empty slots."""
    return share_right(x, tl.trans(members), PRECISION)


@triton.jit
def row_maxima(x, owners, n_items):
    """Of every cell the greatest of its item's rows in its column; in empty slots the cell itself."""
    maxima = x
    for item in range(n_items):
        inside = (owners == item)[:, None]
        best = tl.max(tl.where(inside, x, float("-inf")), 0)
        maxima = tl.where(inside, best[None, :], maxima)
    return maxima


@triton.jit
def column_maxima(x, owners, n_items):
    """Of every cell the greatest of its item's columns in its row; in empty slots the cell itself."""
    maxima = x
    for item in range(n_items):
        inside = (owners == item)[None, :]
        best = tl.max(tl.where(inside, x, float("-inf")), 1)
        maxima = tl.where(inside, best[:, None], maxima)
    return maxima


@triton.jit
def shown(size):
    """The value of a size that `triton_launch.hidden` hides."""
    return (size - 3) >> 1


@triton.jit
def bounded(x, MOST: tl.constexpr):
    """x held within ±MOST; NaN becomes 0. What a maximum with NaN is differs between versions of Triton."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -MOST), MOST), 0.0)


@triton.jit
def grouped(program, n_rows, n_columns, GROUP: tl.constexpr):
    """(row, column) of a program in an order in which programs that run together share rows and columns of tiles."""
    band = program // (GROUP * n_columns)
    first = band * GROUP
    height = tl.minimum(n_rows - first, GROUP)
    within = program % (GROUP * n_columns)
    return first + within % height, within // height


@triton.jit
def inverse(x):
    """1 / x, and 0 where x is 0."""
    return tl.where(x != 0, 1.0 / tl.where(x != 0, x, 1.0), 0.0)


@triton.jit(do_not_specialize=["n_rows"])
def row_norms(
    features, norms, n_rows, per_item, item_stride, row_stride, D,
    INVERTED: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """‖x‖ of every row of a side or its inverse.

    0 where it is not finite, scores are NaN there by similarities, and where its inverse may not be.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cells = features + row_offsets(row, per_item, item_stride, row_stride)[:, None] + tl.arange(0, K)[None, :]
    inside = (row < n_rows)[:, None]
    largest = tl.zeros((ROWS,), tl.float32)
    for d in range(0, D, K):
        x = tl.load(cells + d, mask=inside & (d + tl.arange(0, K) < D)[None, :], other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(x), 1))
    scale = tl.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
    squares = tl.zeros((ROWS,), tl.float32)
    for d in range(0, D, K):
        x = tl.load(cells + d, mask=inside & (d + tl.arange(0, K) < D)[None, :], other=0.0).to(tl.float32)
        x = x / scale[:, None]
        squares += tl.sum(x * x, 1)
    norm = scale * tl.sqrt(squares)
    norm = tl.where((norm >= 2.0**-126) & (norm < float("inf")), norm, 0.0)
    tl.store(norms + row, inverse(norm) if INVERTED else norm, mask=row < n_rows)
