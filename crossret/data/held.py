"""Features that a GPU holds whole, so that batches take their rows there and nothing of them is copied at a step."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossret.data.gathering import dtype_of, gathered, pinned
from crossret.data.precomputed import PrecomputedDataset
from crossret.progress import Progress
from crossret_kernels.extending import release_pages

_BLOCK_BYTES = 64 * 2**20  # copied at a time


@dataclass(frozen=True)
class HeldRows:
    """Features (b, k, d) of some images, taken from those that a GPU holds when they are to be on it.

    They are moved as a tensor is.

    Attributes:
        features: (n, k, d) float32 or float16, on the GPU.
        images: (b,) int64.
    """

    features: Tensor
    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def pin_memory(self) -> HeldRows:
        """These rows with their numbers in pinned memory."""
        return replace(self, images=self.images.pin_memory())

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Tensor:
        """The features themselves."""
        images = self.images.to(self.features.device, non_blocking=non_blocking)
        return self.features.index_select(0, images).to(device)


def held_on(data: PrecomputedDataset, device: torch.device, progress: Progress | None = None) -> PrecomputedDataset:
    """This split with the features of all images on a device, as they are stored: batches are equal to the bit.

    Args:
        data: with ``bytes_of`` more than 0.
        device: where.
        progress: called with (images copied, all of them).
    """
    array, rows, lengths = data.features, data.feature_rows, data.lengths
    held = torch.empty((data.n_images, *array.shape[1:]), dtype=dtype_of(array.dtype), device=device)
    block = max(1, _BLOCK_BYTES // (bytes_of(data) // data.n_images))
    for first in range(0, data.n_images, block):
        chunk = rows[first : first + block]
        with pinned(device.type == "cuda"):
            part = gathered(array, chunk, None if lengths is None else lengths[chunk])
        held[first : first + len(chunk)].copy_(part, non_blocking=True)
        release_pages(array)
        if progress is not None:
            progress(first + len(chunk), data.n_images)
    found = copy.copy(data)
    found.held = held
    return found


def bytes_of(data: PrecomputedDataset) -> int:
    """Memory that the features of all images take as they are stored; 0 of pictures and of what is no array."""
    array: Any = data.features
    if not isinstance(array, np.ndarray):
        return 0
    return data.n_images * math.prod(array.shape[1:]) * array.itemsize
