"""A pair of stacked cross attention in Triton as one program holds it: all its contexts by all its queries."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.cross_attention.triton.attention import EPS, OF_MEAN
from crossret_kernels.gpu.sides import Side, both_sides, shared_memory
from crossret_kernels.gpu.triton_launch import encoded
from crossret_kernels.gpu.triton_tiles import decoded, inverse
from crossret_kernels.gpu.tuning import AttendedPairs, slots_for

LARGE = tl.constexpr(1e15)  # magnitude from which on similarities are scaled down before squaring
K = tl.constexpr(AttendedPairs.COLUMNS)
ALL, LENGTHS, OFFSETS, MASK = range(4)  # source of an item's number of rows


class SideLayout(NamedTuple):
    """Layout of a side's rows; sizes are encoded, strides in UNIT elements.

    Attributes:
        extents: lengths or offsets; places: of the rows a mask keeps. Any tensor where there are none.
        slots: maximal rows of an item.
    """

    features: Tensor
    extents: Tensor
    places: Tensor
    slots: int
    item_stride: int
    row_stride: int


class PairKind(NamedTuple):
    """Compile-time constants of the kernels.

    Attributes:
        CLIPS, NORM, NORMALIZE, POOLING: options; NORM is raw_feature_norm without the clip, "none" for "minmax".
        SPREAD, PROJECTS, FOCAL: raw_feature_norm "minmax"; relevance "projection"; option.
        COLUMN: of contexts in pairs.
        C, Q: slots of a tile for contexts and queries.
        ATTENDED: attended vectors are wanted.
        EVEN: `K` divides D.
        OF_CONTEXTS: side of an item whose pairs are summed.
        CONTEXT_EXTENTS, QUERY_EXTENTS: `ALL`, `LENGTHS`, `OFFSETS` or `MASK`.
        CONTEXT_UNIT, QUERY_UNIT: elements that strides are counted in.
        PRECISION, SECOND: of products of features, and of products with float32 numbers.
    """

    CLIPS: bool
    NORM: str
    NORMALIZE: bool
    POOLING: str
    SPREAD: bool
    PROJECTS: bool
    FOCAL: bool
    COLUMN: int
    C: int
    Q: int
    ATTENDED: bool
    EVEN: bool
    OF_CONTEXTS: bool
    CONTEXT_EXTENTS: int
    QUERY_EXTENTS: int
    CONTEXT_UNIT: int
    QUERY_UNIT: int
    PRECISION: str
    SECOND: str


class PairCall:
    """A call of `crossret::scan_attend_triton`, from the operands of its schema."""

    def __init__(self, *arguments: Any) -> None:
        empty_score, reduced, *codes, self.query_places, self.context_places, attended = arguments[9:]
        options = ScanOptions.of_codes(*codes)
        self.pairs: Tensor = arguments[8].contiguous()
        images, captions = both_sides(arguments[:8], empty_score is not None)
        self.sides = (images, captions) if options.direction == "t2i" else (captions, images)
        contexts, queries = self.sides
        self.dim = contexts.features.size(-1)
        c, q = slots_for(contexts.width), slots_for(queries.width)
        most = AttendedPairs.cells(shared_memory(contexts.features.device))
        if c * q > most:
            raise UnsupportedByBackend(
                f"backend 'triton' has a pair's similarities in one tile of {most}, these items take "
                f"{c} × {q}: backend='torch' makes what longer ones attend to"
            )
        self.layouts, extents, units, far = zip(*map(_layout_of, self.sides), strict=True)
        wide = contexts.features.dtype == torch.float32 and not reduced
        spread = options.norm == "minmax"
        self.kind = PairKind(
            options.clips, "none" if spread else options.norm, options.normalize, options.pooling, spread,
            options.relevance == "projection", options.focal, int(options.direction != "t2i"), c, q, attended,
            self.dim % K.value == 0, False, extents[0], extents[1], units[0], units[1], "ieee" if wide else "tf32",
            "tf32" if reduced and contexts.features.dtype == torch.float32 else "tf32x3",
        )  # fmt: skip
        threshold = -1.0 if options.threshold is None else options.threshold
        setting = threshold if spread else options.inverse_temperature
        self.numbers = options.clip_slope, setting, options.lambda_lse, float(empty_score or 0.0)
        self.key: Hashable = contexts.features.device, contexts.features.dtype, far
        self.warps = 4 if c * q <= 2048 else 8

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.dim, self.query_places, self.context_places


def _layout_of(side: Side) -> tuple[SideLayout, int, int, bool]:
    """(Layout of a side, source of its lengths, unit of strides, True where these take 64 bits)."""
    if side.features.data_ptr() % 16:
        side = side._replace(features=side.features.clone(memory_format=torch.contiguous_format))
    rows = side.row_layout
    extents = side.features if side.extents is None else side.extents.contiguous()
    places = extents if side.places is None else side.places
    kind = OFFSETS if side.packed else MASK if side.places is not None else ALL if side.extents is None else LENGTHS
    slots = side.width if side.packed else side.slots
    sizes = (encoded(x) for x in (slots, rows.item_stride // rows.unit, rows.row_stride // rows.unit))
    return SideLayout(side.features, extents, places, *sizes), kind, rows.unit, rows.far


@triton.jit
def item_rows(side, item, r, EXTENTS: tl.constexpr, UNIT: tl.constexpr):
    """Rows r of an item: (offsets of their elements, mask, places, number of the first place)."""
    slots = decoded(side.slots).to(tl.int64)
    row_stride = decoded(side.row_stride).to(tl.int64)
    place = r.to(tl.int64)
    if EXTENTS == 2:
        first = tl.load(side.extents + item)
        here = place < tl.load(side.extents + item + 1) - first
        begin = first * row_stride
    else:
        first = item * slots
        here = place < slots
        if EXTENTS != 0:
            here = here & (place < tl.load(side.extents + item))
        begin = item * decoded(side.item_stride)
    if EXTENTS == 3:
        place = tl.where(place < slots, tl.load(side.places + first + place, mask=place < slots, other=0), place)
    return (begin + tl.where(here, place, 0) * row_stride) * UNIT, here, place, first


@triton.jit
def pair_items(pairs, pair, KIND: tl.constexpr):
    """Items of contexts and of queries of a pair."""
    return tl.load(pairs + 2 * pair + KIND.COLUMN), tl.load(pairs + 2 * pair + (1 - KIND.COLUMN))


@triton.jit
def context_rows(side, item, KIND: tl.constexpr):
    return item_rows(side, item, tl.arange(0, KIND.C), KIND.CONTEXT_EXTENTS, KIND.CONTEXT_UNIT)


@triton.jit
def query_rows(side, item, KIND: tl.constexpr):
    return item_rows(side, item, tl.arange(0, KIND.Q), KIND.QUERY_EXTENTS, KIND.QUERY_UNIT)


@triton.jit
def load_columns(data, rows, here, d, D, KIND: tl.constexpr):
    """(rows, K) columns from d on."""
    k = d + tl.arange(0, K)
    inside = here[:, None] if KIND.EVEN else here[:, None] & (k < D)[None, :]
    return tl.load(data + rows[:, None] + k[None, :], mask=inside, other=0.0)


@triton.jit
def scales(squares, KIND: tl.constexpr):
    """(Lengths of rows as attention sees them, scales of their similarities), from their squared lengths."""
    norms = tl.sqrt(squares)
    if KIND.NORMALIZE:
        return tl.where(norms == 0, 0.0, norms / tl.where(norms == 0, 1.0, norms)), inverse(norms)
    return norms, tl.full(norms.shape, 1.0, tl.float32)


@triton.jit
def pair_attention(
    contexts, queries, c_rows, c_here, q_rows, q_here, grads, cells, D, slope, setting, GRADS: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """(Similarities (C, Q), lengths and scales of queries, scales of contexts; what `normed` has; the weights; of GRADS
    the contexts' products with the gradients of attended vectors, which begin at these cells).
    """
    s = tl.full((KIND.C, KIND.Q), 0, tl.float32)
    dp = tl.full((KIND.C, KIND.Q), 0, tl.float32)
    c_squares = tl.full((KIND.C,), 0, tl.float32)
    q_squares = tl.full((KIND.Q,), 0, tl.float32)
    for d in range(0, D, K):
        x = load_columns(contexts.features, c_rows, c_here, d, D, KIND)
        y = load_columns(queries.features, q_rows, q_here, d, D, KIND)
        s = tl.dot(x, tl.trans(y), s, input_precision=KIND.PRECISION)
        if KIND.NORMALIZE:
            c_squares += tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
        q_squares += tl.sum(y.to(tl.float32) * y.to(tl.float32), 1)
        if GRADS:
            grad = load_columns(grads, cells, q_here, d, D, KIND)
            dp = tl.dot(x.to(tl.float32), tl.trans(grad), dp, input_precision=KIND.SECOND)
    _, c_scale = scales(c_squares, KIND)
    lengths, q_scale = scales(q_squares, KIND)
    if KIND.PROJECTS:  # which counts each query's length for 1
        lengths = tl.full(lengths.shape, 1.0, tl.float32)
    s = s * c_scale[:, None] * q_scale[None, :]
    mask = c_here[:, None] & q_here[None, :]
    x, factor, n = normed(s, mask, slope, KIND)
    return s, lengths, q_scale, c_scale, x, factor, n, attention(n, mask, setting, KIND), dp


@triton.jit
def normed(s, mask, slope, KIND: tl.constexpr):
    """(Clipped similarities (C, Q), the factor of each context, their normalised product): steps 2 and 3."""
    x = tl.where(mask, s, 0.0)
    if KIND.CLIPS:
        x = tl.where(x > 0, x, x * slope)
    factor = tl.full((KIND.C,), 1.0, tl.float32)
    n = x
    if KIND.NORM == "softmax":
        greatest = tl.max(tl.where(mask, x, -float("inf")), 1)
        n = tl.where(mask, tl.exp(x - tl.where(greatest == -float("inf"), 0.0, greatest)[:, None]), 0.0)
        n = n * inverse(tl.sum(n, 1))[:, None]
    elif KIND.NORM != "none":
        if KIND.NORM == "l2norm":
            greatest = tl.max(tl.abs(x), 1)
            greatest = tl.where(greatest > LARGE, greatest, 1.0)
            y = x * (1.0 / greatest)[:, None]
            norm = tl.sqrt(tl.sum(y * y, 1)) * greatest
        else:
            norm = tl.sum(tl.abs(x), 1)
        factor = tl.where(norm == 0, 0.0, 1.0 / (norm + EPS))
        n = x * factor[:, None]
    return x, factor, n


@triton.jit
def spread(s, mask, threshold):
    """(n = (s − min) / (max − min), 1 where a query's s are equal; whether n is not below the threshold, or no number;
    whether s is the least; max − min), of similarities s halved, whose differences float32 holds.
    """
    s = s * 0.5
    least, greatest = tl.min(tl.where(mask, s, float("inf")), 0), tl.max(tl.where(mask, s, -float("inf")), 0)
    width = greatest - least
    n = (s - least[None, :]) / tl.where(width > 0, width, 1.0)[None, :]
    n = tl.where(s == greatest[None, :], 1.0, n)
    count = tl.sum(mask.to(tl.float32), 0)
    stays = mask & ((n < tl.where(threshold < 0, inverse(count), threshold)[None, :]) == 0)
    return n, stays, mask & (s == least[None, :]), width


@triton.jit
def attention(n, mask, setting, KIND: tl.constexpr):
    """Weights (C, Q): exp(λn) / Σ exp(λn), 0 where there is no context or query (step 4), or FOCAL drops them; of
    SPREAD its n in place of exp(λn).

    `setting`: λ, of SPREAD the threshold.
    """
    if KIND.SPREAD:
        e, stays, _least, _width = spread(n, mask, setting)
        e = tl.where(stays, e, 0.0)
    else:
        greatest = tl.max(tl.where(mask, n * setting, -float("inf")), 0)
        greatest = tl.where(greatest == -float("inf"), 0.0, greatest)
        e = tl.where(mask, tl.exp(n * setting - greatest[None, :]), 0.0)
    if KIND.FOCAL:
        least = tl.sum(e, 0) * OF_MEAN * inverse(tl.sum(mask.to(tl.float32), 0))
        e = tl.where(e > least[None, :], e, e * 0.0)  # NaN stays
    return e * inverse(tl.sum(e, 0))[None, :]


@triton.jit
def attention_gradients(n, p, dp, mask, setting, KIND: tl.constexpr):
    """∂L/∂n from ∂L/∂ the weights p, arguments as of `attention`; ties share that of SPREAD's least similarity."""
    dp = dp - tl.sum(p * dp, 0)[None, :]
    if KIND.SPREAD:
        _n, stays, least, width = spread(n, mask, setting)
        if KIND.FOCAL:
            stays = p > 0
        dn = tl.where(stays, dp * tl.max(p, 0)[None, :], 0.0)  # the greatest weight is 1 / Σ n
        dn -= tl.where(least, (tl.sum(dn, 0) * inverse(tl.sum(least.to(tl.float32), 0)))[None, :], 0.0)
        return dn * (inverse(width) * 0.5)[None, :]
    return p * dp * setting


@triton.jit
def cosines(products, squares, lengths):
    """(cos(q, a), its denominator, True where that is ‖q‖ ‖a‖ and not the floor); 0 where a length is 0."""
    length = lengths * tl.sqrt(squares)
    least = tl.where(length < EPS, EPS, length)
    return tl.where(length == 0, 0.0, products / least), least, length >= EPS
