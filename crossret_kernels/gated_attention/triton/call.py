"""A call of gated attention as its Triton kernels take it: operands in blocks of columns, parts of pairs, a workspace.

Pairs of a part are rows (image · captions + caption) of everything that is made for them. A kernel serves either side,
the "own" one, whose item all rows of its tiles share; the strides of pairs tell it how the other side's items follow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from crossret_kernels.gpu.planning import PairPart, aligned, parts_of_pairs
from crossret_kernels.gpu.sides import shared_memory
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.triton_tiles import logistic
from crossret_kernels.gpu.tuning import GatedTuning
from crossret_kernels.torch_internals import reduced_float32


class GatedKind(NamedTuple):
    """Specialisation of the kernels.

    Attributes:
        PAIRS: of a tile.
        ROWS: of an item at a time, and of pairs that a sum takes at a time.
        HIDDEN, STEP: hidden units at a time, and columns of the gate that they are made of.
        COLUMNS: of anything else at a time; they and STEP divide HIDDEN, which divides all sizes.
        PRECISION: of products.
        QUICK: whether products of bfloat16 follow, which the hardware's tanh is exact enough for.
        IMAGES: whether the own side are the images.
        STORE: whether the gradients' kernels want what is made on the way.
    """

    PAIRS: int
    ROWS: int
    HIDDEN: int
    STEP: int
    COLUMNS: int
    PRECISION: str
    QUICK: bool
    IMAGES: bool
    STORE: bool


class GatedSide(NamedTuple):
    """One side's items, or some of them, with the parameters of its attention: columns are whole blocks of them.

    Attributes:
        keys, values, memory: (n, L, H), (n, L, D) and (n, G), in the dtype of products.
        mask: (n, L) uint8.
        weight: (H, G), in the dtype of products.
        bias: (H,) float32.
    """

    keys: Tensor
    values: Tensor
    memory: Tensor
    mask: Tensor
    weight: Tensor
    bias: Tensor

    def part(self, first: int, stop: int) -> GatedSide:
        return self._replace(**{name: getattr(self, name)[first:stop] for name in ("keys", "values", "memory", "mask")})


class GatedCall:
    """Operands of `crossret::gated_attention_triton`, ready for kernels."""

    def __init__(self, operands: Sequence[Tensor], alpha: float, bfloat16: bool, store: bool) -> None:
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        precision = "tf32" if bfloat16 or reduced_float32(True) else "ieee"
        tile = GatedTuning.tile(shared_memory(operands[0].device), precision == "ieee", dtype.itemsize)
        pairs, hidden, step = tile
        self.kind = GatedKind(
            pairs, GatedTuning.ROWS, hidden, step, GatedTuning.COLUMNS, precision, bfloat16, True, store
        )
        self.warps = GatedTuning.warps(pairs)
        regions, words = (
            self._side(operands[4 * n : 4 * n + 4], operands[8 + 2 * n : 10 + 2 * n], dtype) for n in (0, 1)
        )
        self.sides = [regions, words]
        self.alpha, self.bias = alpha, self.whole(operands[12], torch.float32)
        self.counts = [own.keys.size(0) for own in self.sides]
        self.key: Hashable = operands[0].device, dtype
        self.gate, self.dim = self.sides[0].memory.size(1), self.bias.size(0)
        self.hidden = [own.bias.size(0) for own in self.sides]
        self.slots = [own.mask.size(1) for own in self.sides]
        self.pitches = [-(-slots // self.kind.ROWS) * self.kind.ROWS for slots in self.slots]  # of weights

    def _side(self, items: Sequence[Tensor], step: Sequence[Tensor], dtype: torch.dtype) -> GatedSide:
        keys, values, memory = (self.whole(x, dtype) for x in items[:3])
        mask = aligned(items[3].contiguous().view(torch.uint8))
        weight = self.whole(self.whole(step[0], dtype).mT, dtype).mT.contiguous()
        return GatedSide(keys, values, memory, mask, weight, self.whole(step[1], torch.float32))

    def whole(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """With zeros behind that make whole blocks of columns."""
        missing = -x.size(-1) % self.kind.HIDDEN
        return aligned((pad(x, (0, missing)) if missing else x).to(dtype).contiguous())

    def parts(self) -> Iterator[PairPart]:
        """Rectangles whose workspace is bounded."""
        size = self.sides[0].keys.element_size()
        bytes_of = 4 * sum(self.pitches) + size * self.dim
        if self.kind.STORE:
            bytes_of += 4 * sum(self.pitches) + size * (self.dim + sum(self.hidden)) + 2 * (size + 4) * self.gate
        n_images, n_captions = self.counts
        return parts_of_pairs(n_images, n_captions, GatedTuning.WORKSPACE_BYTES // bytes_of)

    def run(
        self, kernel: Any, part: PairPart, side: int, tensors: Sequence[Any], sizes: Sequence[int], *strides: int,
        blocks: int | None = None,
    ) -> None:  # fmt: skip
        """Launches a kernel on a part's pairs with one side as the own one: a program a tile and one of its blocks."""
        n_own, n_others = part.counts[side], part.counts[1 - side]
        of_pairs = (part.counts[1], 1) if side == 0 else (1, part.counts[1])
        tiles = -(-n_others // self.kind.PAIRS) if blocks is None else blocks
        launch(
            kernel, (n_own * tiles, 1, 1), (*tensors, n_others, *sizes, *of_pairs, *strides),
            self.kind._replace(IMAGES=side == 0), self.key, self.warps,
        )  # fmt: skip


@triton.jit
def hardware_tanh(x):
    """To 2⁻¹¹, by one instruction, which no interpreter has."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def sigmoid(x, QUICK: tl.constexpr):
    return 0.5 + 0.5 * hardware_tanh(0.5 * x) if QUICK else logistic(x)


@triton.jit
def tanh(x, QUICK: tl.constexpr):
    """tanh, of small numbers by its series: the quotient would lose digits."""
    if QUICK:
        return hardware_tanh(x)
    square = x * x
    series = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    power = tl.exp(-2.0 * tl.abs(x))
    quotient = (1.0 - power) / (1.0 + power)
    return tl.where(square < 0.0625, series, tl.where(x < 0.0, -quotient, quotient))


@triton.jit
def tile_of_pairs(n_others, own_stride, other_stride, KIND: tl.constexpr):
    """(The own item of a program, its others, which of these there are, the rows of their pairs)."""
    tiles = tl.cdiv(n_others, KIND.PAIRS)
    own = (tl.program_id(0) // tiles).to(tl.int64)
    others = tl.program_id(0) % tiles * KIND.PAIRS + tl.arange(0, KIND.PAIRS)
    return own, others, others < n_others, own * own_stride + others.to(tl.int64) * other_stride
