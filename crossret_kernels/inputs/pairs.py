"""Pairs (image, caption) that a call scores: all of them, a list of pairs, or candidates of every query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.inputs.options import choose
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import FEW, Array, as_tensor, bounds, check_integers, checkable, plural

QUERIES = ("caption", "image")
ATTENDING = {"t2i": "caption", "i2t": "image", "both": "caption"}  # whose candidates they are, unless the caller says
PAIRS_AT_ONCE = 2**17  # their list takes 2 MiB; enough that the cost of a call does not show


@dataclass(slots=True)
class Pairs:
    """Checked pairs as the caller has them, which may take far less memory than their list.

    Attributes:
        indices: pairs (P, 2), or candidates (n_queries, K), of any integer dtype, anywhere.
        query: which side has the candidates, "caption" or "image"; None where indices are pairs.
        device: where the list is wanted.
        pair_list: the list, once there is one.
    """

    indices: Tensor
    query: str | None
    device: torch.device
    pair_list: Tensor | None = None

    def __len__(self) -> int:
        return self.indices.size(0) if self.query is None else self.indices.numel()

    def listed(self) -> Tensor:
        """All pairs (P, 2) as int64 (image, caption) on the device."""
        if self.pair_list is None:
            self.pair_list = self._block(self.indices, 0)
        return self.pair_list

    def in_parts(self, most: int) -> Iterator[Tensor]:
        """Successive parts of that list, each of at most `most` pairs."""
        rows = most if self.query is None else max(1, most // self.indices.size(1))
        for first in range(0, self.indices.size(0), rows):
            block = self.indices[first : first + rows]
            for part in (block,) if self.query is None else block.split(most, 1):
                yield self._block(part, first)

    def _block(self, indices: Tensor, first: int) -> Tensor:
        """The pairs of some rows of the indices, of which `first` is the number of the first."""
        indices = indices.to(self.device, torch.int64, non_blocking=True)
        if self.query is None:
            return indices
        queries = torch.arange(first, first + indices.size(0), device=self.device).unsqueeze(1).expand_as(indices)
        return torch.stack((indices, queries) if self.query == "caption" else (queries, indices), 2).view(-1, 2)


def as_pairs(
    pairs: Array | None,
    candidates: Array | None,
    query: str | None,
    attending: str,
    images: Ragged,
    captions: Ragged,
    items: tuple[str, str] = ("image", "caption"),
) -> Pairs | None:
    """The pairs to score, checked; None for all pairs.

    `candidates` (n_queries, K) hold, for every item of the side that `query` names, the indices of the K items of the
    other side it is scored against; a `query` of None is the `attending` one. `items` is what errors call one of either
    side.
    """
    if query is not None:
        choose("query", query, QUERIES)
        if candidates is None:
            raise ValueError("query goes with candidates: it tells whose they are")
    if pairs is None and candidates is None:
        return None
    n_images, n_captions, device = len(images), len(captions), images.values.device
    if pairs is not None and candidates is not None:
        raise ValueError("pairs and candidates exclude each other: pass one of them")
    if pairs is not None:
        pairs = _as_indices(pairs, "pairs")
        if pairs.dim() != 2 or pairs.size(1) != 2:
            raise ValueError(f"pairs must have shape (P, 2), got {tuple(pairs.shape)}")
        if checkable() and pairs.size(0):
            image_bounds, caption_bounds = _bounds_of_columns(pairs)
            _check_range(pairs, 0, image_bounds, n_images, items[0])
            _check_range(pairs, 1, caption_bounds, n_captions, items[1])
        return Pairs(pairs, None, device, pairs.to(device, non_blocking=True) if pairs.dtype == torch.int64 else None)
    candidates = _as_indices(candidates, "candidates")
    query = attending if query is None else query
    is_caption = query == "caption"
    n_queries, n_items = (n_captions, n_images) if is_caption else (n_images, n_captions)
    query_name, item_name = (items[1], items[0]) if is_caption else items
    if candidates.dim() != 2 or candidates.size(0) != n_queries:
        raise ValueError(
            f"candidates must have shape ({n_queries}, K), a row for each {query_name}, got {tuple(candidates.shape)}"
        )
    pair_list: Tensor | None = None
    if checkable() and 0 < candidates.numel() <= FEW:
        flat = candidates.flatten().tolist()
        _check_range(candidates, None, (min(flat), max(flat)), n_items, item_name)
        query_numbers = [index // candidates.size(1) for index in range(len(flat))]
        columns = (flat, query_numbers) if is_caption else (query_numbers, flat)
        pair_list = torch.tensor(list(zip(*columns, strict=True)), dtype=torch.int64, device=device)
    elif checkable() and candidates.numel():
        _check_range(candidates, None, bounds(candidates), n_items, item_name)
    return Pairs(candidates, query, device, pair_list)


def _as_indices(indices: object, name: str) -> Tensor:
    if isinstance(indices, np.ndarray):
        indices = as_tensor(indices, name)
    if not isinstance(indices, Tensor):
        raise TypeError(f"{name} must be an integer tensor, not {type(indices).__name__}")
    check_integers(indices, name)
    return indices


def _bounds_of_columns(pairs: Tensor) -> list[tuple[int, int]]:
    """Smallest and largest image, smallest and largest caption, without a copy of either column."""
    if pairs.numel() <= FEW:
        return [(min(column), max(column)) for column in zip(*pairs.tolist(), strict=True)]
    lowest, highest = pairs.aminmax(dim=0)
    return list(zip(lowest.tolist(), highest.tolist(), strict=True))


def _check_range(indices: Tensor, column: int | None, limits: tuple[int, int], count: int, item: str) -> None:
    """Raises where `limits` of indices, the column of pairs or all of candidates, leave the `count` items there are."""
    if limits[0] >= 0 and limits[1] < count:
        return
    name = "candidates" if column is None else "pairs"
    indices = (indices if column is None else indices[:, column]).to(torch.int64)  # which `count` fits
    where = ((indices < 0) | (indices >= count)).nonzero()[0].tolist()
    value = int(indices[tuple(where)])
    place = "][".join(str(index) for index in where)
    raise ValueError(f"{name}[{place}] names {item} {value}, but there are {count} {plural(item)}")
