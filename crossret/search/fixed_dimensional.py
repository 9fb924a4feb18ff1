"""One vector an item, whose inner products stand for MaxSim: what an index of nearest vectors takes for candidates.

Fixed-dimensional encodings, MUVERA: L. Dhulipala et al., Multi-Vector Retrieval via Fixed Dimensional Encodings, 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_NUMBERS = 2**24  # in a chunk's largest intermediate


class Vectors(Protocol):
    """Maker of one vector of the rows of an item.

    Attributes:
        dim: of the vectors.
    """

    @property
    def dim(self) -> int: ...

    def of_queries(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """(n, dim) float32 of queries, whose rows (rows, D) lie one after another; item i has offsets[i] to [i + 1]."""

    def of_documents(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """(n, dim) float32 of documents, likewise."""

    def settings(self) -> dict[str, Any]:
        """Settings that the vectors depend on, as JSON has them."""


@dataclass(frozen=True)
class MeanVectors:
    """The mean of an item's rows: exact where every item has one.

    Args:
        row_dim: D of the rows.
    """

    row_dim: int

    @property
    def dim(self) -> int:
        return self.row_dim

    def of_queries(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return self.of_documents(rows, offsets)

    def of_documents(self, rows: Tensor, offsets: Tensor) -> Tensor:
        item = _item_of_row(offsets)
        sums = torch.zeros(len(offsets) - 1, rows.size(1)).index_add_(0, item, rows.float())
        return sums / offsets.diff()[:, None]

    def settings(self) -> dict[str, Any]:
        return {"vectors": "mean", "row_dim": self.row_dim}


class FixedDimensional:
    """Fixed-dimensional encodings: of a query and a document their inner product estimates MaxSim from the query.

    Random hyperplanes cut the space into 2^bits parts. A query's vector has, of each part, the sum of its rows there; a
    document's their mean or, where it has none, its row that is nearest by the hyperplanes that lie between. Rows are
    projected to fewer numbers first, and all is done so many times.

    Args:
        row_dim: D of the rows.
        bits: hyperplanes.
        repetitions: how many times.
        projected: numbers of a row after its random projection, at most D.
        seed: decides all that is random.

    Attributes:
        dim: repetitions · 2^bits · projected.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, row_dim: int, *, bits: int = 3, repetitions: int = 20, projected: int = 16, seed: int = 0
    ) -> None:
        limits = {"row_dim": (row_dim, 2**20), "bits": (bits, 12), "repetitions": (repetitions, 1024)}
        for name, (value, most) in {**limits, "projected": (projected, 2**20)}.items():
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be in 1..{most}, not {value}")
        self.row_dim, self.bits, self.repetitions, self.seed = row_dim, bits, repetitions, seed
        self.projected = min(projected, row_dim)
        self.parts = 2**bits
        self.dim = repetitions * self.parts * self.projected
        generator = torch.Generator().manual_seed(seed)
        self._planes = torch.randn(row_dim, repetitions * bits, generator=generator)
        signs = torch.randint(0, 2, (row_dim, repetitions * self.projected), generator=generator) * 2.0 - 1
        self._projection: Tensor | None = signs / self.projected**0.5 if self.projected < row_dim else None
        numbers = torch.arange(self.parts)
        differing = numbers[:, None] ^ numbers
        self._distances = torch.stack([(differing >> bit) & 1 for bit in range(bits)]).sum(0)

    def settings(self) -> dict[str, Any]:
        names = ("row_dim", "bits", "repetitions", "projected", "seed")
        return {"vectors": "muvera", **{name: getattr(self, name) for name in names}}

    def of_queries(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """(n, dim) float32 of queries.

        Args:
            rows: (rows, D), of all queries one after another.
            offsets: (n + 1,) int64, where those of each begin and end; each has at least one.
        """
        return self._chunked(rows, offsets, lambda own, ends: self._sums(*self._placed(own), ends)[0])

    def of_documents(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Vectors of documents; arguments as ``of_queries``."""
        return self._chunked(rows, offsets, self._means)

    def _means(self, rows: Tensor, offsets: Tensor) -> Tensor:
        values, parts = self._placed(rows)
        sums, counts = self._sums(values, parts, offsets)
        n, longest = len(offsets) - 1, int(offsets.diff().max())
        item = _item_of_row(offsets)
        place = torch.arange(len(rows)) - offsets[item]
        distances = torch.full((n, longest, self.repetitions, self.parts), self.bits + 1, dtype=torch.int8)
        distances[item, place] = self._distances.to(torch.int8)[parts]
        nearest = distances.argmin(1) + offsets[:-1, None, None]  # (n, repetitions, parts): rows
        repetition = torch.arange(self.repetitions)[:, None]
        filled = values[nearest, repetition]
        means = sums / counts.clamp(min=1)[..., None]
        return torch.where((counts == 0)[..., None], filled, means)

    def _placed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Projected rows (rows, repetitions, projected), and the part (rows, repetitions) that each lies in."""
        n = len(rows)
        above = (rows @ self._planes).view(n, self.repetitions, self.bits) > 0
        parts = (above.long() << torch.arange(self.bits)).sum(2)
        if self._projection is None:
            return rows[:, None].expand(-1, self.repetitions, -1), parts
        return (rows @ self._projection).view(n, self.repetitions, self.projected), parts

    def _sums(self, values: Tensor, parts: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of rows in each part (n, repetitions, parts, projected), and their numbers (n, repetitions, parts)."""
        n = len(offsets) - 1
        repetition = torch.arange(self.repetitions)
        cell = (_item_of_row(offsets)[:, None] * self.repetitions + repetition) * self.parts + parts
        cells = n * self.repetitions * self.parts
        sums = torch.zeros(cells, self.projected).index_add_(0, cell.flatten(), values.reshape(-1, self.projected))
        counts = torch.bincount(cell.flatten(), minlength=cells)
        shape = (n, self.repetitions, self.parts)
        return sums.view(*shape, self.projected), counts.view(shape)

    def _chunked(self, rows: Tensor, offsets: Tensor, encode: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``encode`` of some items at a time; divided, so that a product is the mean of the repetitions'."""
        n = len(offsets) - 1
        vectors = torch.empty(n, self.dim)
        longest = int(offsets.diff().max()) if n else 1
        step = max(1, _NUMBERS // (self.repetitions * max(self.parts * max(longest, self.projected), 1)))
        for start in range(0, n, step):
            ends = offsets[start : min(start + step, n) + 1]
            own = rows[int(ends[0]) : int(ends[-1])].float()
            made = encode(own, ends - ends[0])
            vectors[start : start + len(made)] = made.flatten(1) / self.repetitions**0.5
        return vectors


def _item_of_row(offsets: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
