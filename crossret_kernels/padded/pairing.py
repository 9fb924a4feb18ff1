"""Pairs of some images and captions that are scored together, all or listed ones, seen from either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rectangle:
    """Every item of the own side with every one of the other: "…" is (own, other)."""

    def meet(self, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n, …) of the items of either side as those of pairs, as far as they broadcast."""
        return own[:, None], other[None]

    def products(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Rows (…, X) of pairs times the matrices (n_own, X, Y) of their own items: (…, Y)."""
        return rows @ matrices

    def dots(self, own: Tensor, other: Tensor) -> Tensor:
        """Products (…, K) of the vectors (n, K, D) of either side."""
        return torch.einsum("ikd,jkd->ijk", own, other)

    def turned(self) -> Rectangle:
        """These pairs with the sides exchanged."""
        return self

    def turned_back(self, values: Tensor) -> Tensor:
        """Results of these pairs, in the order of the pairs that they are `turned` of."""
        return values.transpose(0, 1)


@dataclass(frozen=True)
class Listing:
    """P listed pairs: "…" is (P,).

    Attributes:
        own, other: (P,) int64, items of the sides.
        counts: pairs of each own item, by which the pairs are sorted; None where they are in any order, as inside
            torch.compile.
        other_counts: the same of the other items, by which they are not sorted.
        order: (P,) int64, places of these pairs in the listing that they are `turned` of.
    """

    own: Tensor
    other: Tensor
    counts: list[int] | None = None
    other_counts: list[int] | None = None
    order: Tensor | None = None

    def meet(self, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return own.index_select(0, self.own), other.index_select(0, self.other)

    def products(self, rows: Tensor, matrices: Tensor) -> Tensor:
        if self.counts is None:
            return (rows[:, None] @ matrices.index_select(0, self.own)).squeeze(1)
        # A product for each item reads its matrix once, where it lies: gathered, it would be copied for every pair.
        return torch.cat([own @ matrix for own, matrix in zip(rows.split(self.counts), matrices.unbind(), strict=True)])

    def dots(self, own: Tensor, other: Tensor) -> Tensor:
        a, b = self.meet(own, other)
        return (a * b).sum(-1)

    def turned(self) -> Listing:
        if self.counts is None:
            return Listing(self.other, self.own)
        order = self.other.argsort(stable=True)
        return Listing(self.other[order], self.own[order], self.other_counts, self.counts, order)

    def turned_back(self, values: Tensor) -> Tensor:
        return values if self.order is None else values.index_select(0, self.order.argsort())


Pairing: TypeAlias = Rectangle | Listing
