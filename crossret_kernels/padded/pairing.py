"""Pairs of some images and captions that are scored together, all or listed ones, seen from either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rectangle:
    """Every item of a side with every one of the other, its partners: "…" is (items, partners)."""

    def meet(self, items: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n, …) of the items of either side as those of pairs, as far as they broadcast."""
        return items[:, None], partners[None]

    def products(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Rows (…, X) of pairs times the matrices (n_items, X, Y) of their items: (…, Y)."""
        return rows @ matrices

    def dots(self, items: Tensor, partners: Tensor) -> Tensor:
        """Products (…, K) of the vectors (n, K, D) of either side."""
        return torch.einsum("ikd,jkd->ijk", items, partners)

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
        items, partners: (P,) int64, of either side.
        counts: pairs of each item, by which the pairs are sorted; None where they are in any order, as inside
            torch.compile.
        partner_counts: the same of the partners, by which they are not sorted.
        order: (P,) int64, places of these pairs in the listing that they are `turned` of.
    """

    items: Tensor
    partners: Tensor
    counts: list[int] | None = None
    partner_counts: list[int] | None = None
    order: Tensor | None = None

    def meet(self, items: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
        return items.index_select(0, self.items), partners.index_select(0, self.partners)

    def products(self, rows: Tensor, matrices: Tensor) -> Tensor:
        if self.counts is None:
            return (rows[:, None] @ matrices.index_select(0, self.items)).squeeze(1)
        # A product for each item reads its matrix once, where it lies: gathered, it would be copied for every pair.
        return torch.cat([row @ matrix for row, matrix in zip(rows.split(self.counts), matrices.unbind(), strict=True)])

    def dots(self, items: Tensor, partners: Tensor) -> Tensor:
        a, b = self.meet(items, partners)
        return (a * b).sum(-1)

    def turned(self) -> Listing:
        if self.counts is None:
            return Listing(self.partners, self.items)
        order = self.partners.argsort(stable=True)
        return Listing(self.partners[order], self.items[order], self.partner_counts, self.counts, order)

    def turned_back(self, values: Tensor) -> Tensor:
        return values if self.order is None else values.index_select(0, self.order.argsort())


Pairing: TypeAlias = Rectangle | Listing
