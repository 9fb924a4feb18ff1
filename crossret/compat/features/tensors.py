"""Region features as tensors in one file, of safetensors or of torch.save."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from crossret.compat.features.images import BOXES, COUNTS, FEATURES, Image, StoredImages, find_name
from crossret.compat.features.rows import read_wanted
from crossret.compat.features.stored import arrays_in, read_tensors
from crossret.data.precomputed import is_name


class TensorFile(StoredImages):
    """A tensor (images, k, d) or a list of the images' (k, d), alone or by name beside boxes; or by ids of images their
    tensors (k, d), or what is known of an image by name: a ``Source``.

    Nothing in the file is run. Tensors are mapped: no more than an image is in memory.

    Args:
        path: the file, .safetensors, .pt or .pth.
        ids: a file with the id of an image a line: which images are wanted and in which order, perhaps repeatedly; of a
            file without ids, which its images are, in its order.
        dataset, box_dataset: names of the features and of the boxes, x0, y0, x1, y1 in pixels; by default known ones.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no such file, would run code, a tensor is missing, or there is none of an image; names the
            file, and the tensor or the line. Images are read, and their errors come, as the object is iterated over.
    """

    def __init__(
        self, path: Path, ids: Path | None = None, dataset: str | None = None, box_dataset: str | None = None
    ) -> None:
        self.name = str(path)
        self._names: tuple[str | None, str | None] = (dataset, box_dataset)
        contents = read_tensors(path)
        named = contents if isinstance(contents, dict) else {FEATURES[0]: contents}
        self._contents: dict[str, Any] = {str(name): value for name, value in named.items()}
        wanted = None if ids is None else read_wanted(ids)
        known = (dataset, *FEATURES)
        self._by_id = not any(name in known or _of_images(value) for name, value in self._contents.items())
        if self._by_id:
            self.ids = list(self._contents) if wanted is None else wanted
            for number, name in enumerate(self.ids, start=1):
                if name not in self._contents:
                    raise ValueError(f"{ids}, line {number}: no image {name[:40]!r} in {path}")
                if not is_name(name):
                    raise ValueError(f"{path}: {name[:40]!r} names no image")
            self.total = len(self.ids)
        else:
            self._contents = self._columns()
            self.ids, self.total = wanted, len(next(iter(self._contents.values())))
            for name, column in self._contents.items():
                if len(column) != self.total:
                    raise ValueError(f"{path}: {name}: of {len(column)} images, but the features are of {self.total}")
            if wanted is not None and len(wanted) != self.total:
                raise ValueError(f"{ids}: {len(wanted)} ids, but {path} has {self.total} images without ids")
        # A tensor may be a view that repeats itself, or be there many times: a few bytes would claim any size.
        left = os.path.getsize(path)
        for value in self._contents.values():
            for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                left -= max(1, item.numel() * item.element_size()) if isinstance(item, Tensor) else 1
                if left < 0:
                    raise ValueError(f"{path}: its tensors are larger than the file")

    @contextmanager
    def opened(self, number: int) -> Iterator[Image]:
        if self._by_id and self.ids is not None:
            arrays = arrays_in(self._contents[self.ids[number]], f"{self.name}, image {self.ids[number]}")
        else:
            row = {name: column[number] for name, column in self._contents.items()}
            arrays = arrays_in(row, f"{self.name}, row {number}")
        yield Image(arrays, None, self._names)

    def _columns(self) -> dict[str, Any]:
        """By name what has an item an image, features first."""
        dataset, box_dataset = self._names
        all_of = self._contents
        features = find_name(self.name, all_of, dataset, FEATURES, lambda name: _of_images(all_of[name]))
        found, boxes = [features], None
        if box_dataset is not None or any(name in all_of for name in BOXES):
            boxes = find_name(self.name, all_of, box_dataset, BOXES, lambda _: False)
            found.append(boxes)
        found += [name for name in COUNTS if name in all_of]
        self._names = features, boxes
        for name in found:
            column = all_of[name]
            if not isinstance(column, list) and not (isinstance(column, Tensor) and column.ndim):
                raise ValueError(f"{self.name}: {name}: neither a tensor nor a list with an item an image")
        return {name: all_of[name] for name in found}


def _of_images(value: Any) -> bool:
    """Whether it is what features of images are that no name tells."""
    return isinstance(value, list) or (isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point())
