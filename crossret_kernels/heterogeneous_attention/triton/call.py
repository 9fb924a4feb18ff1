"""A call of heterogeneous attention as its Triton kernels take it: both sides' items, parts of pairs, their products.

Of some images and captions, the "own" side's rows (own · L + l) attend to the keys (other · K + k) of the other side.
What they make is laid out by the other side's items, whose values are multiplied, (n_other, n_own · L, …); rows that
are matched lie by pairs, (image · captions + caption, L, …).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossret_kernels.cross_attention.triton.chunks import multiply
from crossret_kernels.gpu.planning import PairPart, aligned, parts_of_pairs
from crossret_kernels.gpu.triton_launch import launch
from crossret_kernels.gpu.tuning import HeterogeneousTuning
from crossret_kernels.torch_internals import reduced_float32


class LayerKind(NamedTuple):
    """Specialisation of the kernels.

    Attributes:
        HEADS, D: of the layer.
        WIDTH: the power of two from D on.
        ROWS: of a tile of logits, of either side.
        PAIRS: whose rows are normalised at once.
        POOLING: its place among the names.
        T2I: whether the words attend in the matching.
        PRECISION: of products in kernels.
        STORE: whether the gradients' kernels want what is made on the way.
    """

    HEADS: int
    D: int
    WIDTH: int
    ROWS: int
    PAIRS: int
    POOLING: int
    T2I: bool
    PRECISION: str
    STORE: bool


class LayerSide(NamedTuple):
    """One side's items, or some of them, in the dtype of products but for the last four, float32 and int64.

    Attributes:
        queries: (H, n, L, D / H), rows that attend: the first alone where no others are matched.
        keys: (H, n, K, D / H).
        values: (n, H · K, D).
        own_values: (n, L, H + 1, D).
        own_logits: (n, L, H).
        lengths, counts: (n,), of these rows and of the keys.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    own_values: Tensor
    own_logits: Tensor
    lengths: Tensor
    counts: Tensor

    def part(self, first: int, stop: int) -> LayerSide:
        of_heads = [x[:, first:stop] for x in self[:2]]
        return LayerSide._make([*of_heads, *(aligned(x[first:stop]) for x in self[2:])])

    @property
    def rows(self) -> int:
        """L."""
        return self.queries.size(2)

    @property
    def items(self) -> int:
        """Items."""
        return self.queries.size(1)


class LayerCall:
    """Operands of `crossret::heterogeneous_attention_triton`, ready for kernels."""

    def __init__(self, operands: Sequence[Tensor], options: Sequence[Any], store: bool) -> None:
        self.lambda_attention, local, direction, self.lambda_softmax, pooling, self.lambda_lse, bfloat16 = options
        self.dtype = torch.bfloat16 if bfloat16 else torch.float32
        # A first row alone is its own attended vector: its relevance is the cosine of global matching.
        regions, words = (self._side(operands[first : first + 6], local) for first in (0, 6))
        self.sides = regions, words
        self.gain, self.shift = (aligned(x.contiguous()) for x in operands[12:14])
        heads, dim = operands[0].shape[2], self.gain.size(0)
        precision = "tf32" if bfloat16 or reduced_float32(True) else "ieee"
        width = 1 << max(dim - 1, 0).bit_length()
        sizes = HeterogeneousTuning
        self.kind = LayerKind(
            heads, dim, width, sizes.ROWS, max(1, sizes.CELLS // width), pooling if local else 1, direction == 0,
            precision, store,
        )  # fmt: skip
        self.order = 1 if direction == 0 else -1  # of a slice that makes contexts and queries of the sides
        self.key: Hashable = operands[0].device, self.dtype

    def _side(self, items: Sequence[Tensor], local: bool) -> LayerSide:
        queries, keys, values, own_logits, own_values, lengths = items
        most = queries.size(1) if local else 1
        by_heads = [x.permute(2, 0, 1, 3).to(self.dtype).contiguous() for x in (queries[:, :most], keys)]
        return LayerSide(
            by_heads[0], by_heads[1],
            values.transpose(1, 2).flatten(1, 2).to(self.dtype).contiguous(), own_values[:, :most].contiguous(),
            own_logits[:, :most].contiguous(), lengths.clamp(max=most), lengths.contiguous(),
        )  # fmt: skip

    def parts(self) -> Iterator[PairPart]:
        """Rectangles whose workspace is bounded."""
        size, (regions, words) = self.gain.new_empty(0, dtype=self.dtype).element_size(), self.sides
        keys = [side.keys.size(2) for side in self.sides]
        cells = self.kind.HEADS * (regions.rows * keys[1] + words.rows * keys[0])
        matched = 8 * (regions.rows + words.rows) ** 2
        cells, arrays = (2 * cells, 3) if self.kind.STORE else (cells, 2)
        bytes_of = cells * (size + 4) + matched + (regions.rows + words.rows) * self.kind.D * size * arrays
        return parts_of_pairs(regions.items, words.items, HeterogeneousTuning.WORKSPACE_BYTES // bytes_of)

    def run(self, kernel: Any, programs: int, *arguments: Any) -> None:
        launch(kernel, (programs, 1, 1), arguments, self.kind, self.key, HeterogeneousTuning.WARPS)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Batches of products, in float32."""
        out = self.gain.new_empty(*left.shape[:-1], right.size(-1))
        multiply(left, right, out)
        return out
