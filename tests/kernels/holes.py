"""Batches whose valid rows lie anywhere: the same items masked, with NaN in the holes, and packed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Holes:
    """One side of a batch.

    Attributes:
        values: (n, L, D), NaN where there is no row.
        mask: (n, L) bool.
    """

    values: Tensor
    mask: Tensor

    @classmethod
    def of(cls, padded: Tensor, lengths: Tensor, seed: int, holes: int = 3) -> Holes:
        """The rows of padded items, in their order, in random places of items that are longer by `holes`."""
        n, longest, dim = padded.shape
        generator = torch.Generator().manual_seed(seed)
        values = torch.full((n, longest + holes, dim), torch.nan, dtype=padded.dtype)
        mask = torch.zeros(n, longest + holes, dtype=torch.bool)
        for item, length in enumerate(lengths.tolist()):
            places = torch.randperm(longest + holes, generator=generator)[:length].sort().values
            values[item, places] = padded[item, :length]
            mask[item, places] = True
        return cls(values, mask)

    @property
    def packed(self) -> tuple[Tensor, Tensor]:
        """(values, cu_seqlens)."""
        lengths = self.mask.sum(1)
        return self.values[self.mask], torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    def spread(self, rows: Tensor, fill: float = 0) -> Tensor:
        """What belongs to packed rows (rows, …), where the mask has them."""
        spread = rows.new_full((*self.mask.shape, *rows.shape[1:]), fill)
        spread[self.mask] = rows
        return spread
