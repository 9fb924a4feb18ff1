"""Pictures as an encoder reads them, in the place of region features: read from their files as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.files.regular import open_regular


class Prepared:
    """Some pictures, as ``PictureEncoder.prepare`` makes them: what a model with an encoder takes for features.

    It is moved and cut as a tensor is; the encoder takes the pixels to where its weights are.

    Attributes:
        items: one a picture.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice) -> Prepared:
        return Prepared(self.items[rows])

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Prepared:
        """Itself: the encoder moves what it reads."""
        return self

    def pin_memory(self) -> Prepared:
        """Itself: pixels are not pinned, and copied while the GPU waits."""
        return self


class PictureFiles:
    """Files of pictures as an array of features that is read as it is indexed, by several threads.

    Args:
        files: one a picture.
        prepare: from a file to what the encoder reads; called by several threads at once.
        shape: regions of a picture, and numbers of each.
        workers: how many threads.

    Attributes:
        shape, dtype, ndim: as of an array of features.
    """

    ndim = 3
    dtype = np.dtype(np.float32)

    def __init__(
        self, files: Sequence[Path], prepare: Callable[[Path], Any], shape: tuple[int, int], workers: int
    ) -> None:
        self.files = list(files)
        self.shape = len(self.files), *shape
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="pictures")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: NDArray[np.int64]) -> Prepared:
        """These pictures (n,), each read once however often it is there.

        Raises:
            OSError, ValueError: one cannot be read, or the encoder cannot take it; names it.
        """
        waiting = {row: self._pool.submit(self._prepare, self.files[row]) for row in dict.fromkeys(rows.tolist())}
        return Prepared([waiting[row].result() for row in rows.tolist()])

    def digest(self, rows: NDArray[np.int64]) -> bytes:
        """Hash of the names and sizes of all files, and of the contents of those in ``rows``."""
        digest = blake2b(digest_size=16)
        for path in self.files:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
        for row in rows.tolist():
            with open_regular(self.files[row]) as file:
                digest.update(file.read())
        return digest.digest()
