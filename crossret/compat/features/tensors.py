"""Region features as tensors, of safetensors or of torch.save: of all images in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from crossret.compat.features.images import BOXES, COUNTS, FEATURES, Arrays, Image, Images, find_name
from crossret.compat.features.kinds import kind_of
from crossret.compat.features.rows import read_wanted
from crossret.data.precomputed import LARGEST_IMAGE, is_name
from crossret.files.pickled import read_saved
from crossret.files.tensors import read_header

IDS = ("image_ids", "img_ids", "ids", "image_id", "img_id")
_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32)


class TensorFile(Images):
    """A tensor (images, k, d) or a list of the images' (k, d), alone or by name beside boxes; or by ids of images their
    tensors (k, d), or what is known of an image by name: a ``Source``. ``image_ids`` beside features name the images.

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
        self.name, self._names, contents = str(path), (dataset, box_dataset), read_tensors(path)
        known = (dataset, *FEATURES)
        listed = next((contents.pop(name) for name in IDS if name in contents), None)
        self._by_id = not any(name in known or _of_images(value) for name, value in contents.items())
        self._contents = contents if self._by_id else self._columns(contents)
        # A tensor may be a view that repeats itself, or be there many times: a few bytes would claim any size.
        left = os.path.getsize(path)
        for value in self._contents.values():
            for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                left -= max(1, item.numel() * item.element_size()) if isinstance(item, Tensor) else 1
                if left < 0:
                    raise ValueError(f"{path}: its tensors are larger than the file")
        self.total = len(contents if self._by_id else next(iter(self._contents.values())))
        self.ids = list(contents) if self._by_id else None if listed is None else _names(listed, path, self.total)
        self._keys: dict[str, Any] = {name: name if self._by_id else row for row, name in enumerate(self.ids or ())}
        if ids is not None:
            self.ids = read_wanted(ids)
            if not self._keys and len(self.ids) != self.total:
                raise ValueError(f"{ids}: {len(self.ids)} ids, but {path} has {self.total} images without ids")
            self.total = len(self.ids)
        for number, name in enumerate(self.ids or (), start=1):
            if not is_name(name) or (self._keys and name not in self._keys):
                place = path if ids is None else f"{ids}, line {number}"
                raise ValueError(f"{place}: no image of the name {name[:40]!r} in {path}")

    @contextmanager
    def opened(self, number: int) -> Iterator[Image]:
        key: Any = self._keys[self.ids[number]] if self._keys and self.ids is not None else number
        if self._by_id:
            place, image = f"{self.name}, image {key}", self._contents[key]
        else:
            place, image = f"{self.name}, row {key}", {name: of[key] for name, of in self._contents.items()}
        yield Image((place, arrays_in(image)), None, self._names)

    def _columns(self, contents: dict[str, Any]) -> dict[str, Any]:
        """Tensors and lists with an item an image, by name."""
        features, boxes = find_name(self.name, contents, self._names[0], FEATURES, _of_images), self._names[1]
        self._names = features, boxes
        lengths = {
            name: len(value)
            for name, value in contents.items()
            if isinstance(value, list) or (isinstance(value, Tensor) and value.ndim)
        }
        for name in (features, boxes, *BOXES, *COUNTS):
            if name in contents and lengths.get(name) != lengths.get(features, 0):
                raise ValueError(f"{self.name}: {name}: not a tensor or a list of an item an image")
        return {name: contents[name] for name, length in lengths.items() if length == lengths[features]}


def read_tensors(path: Path) -> dict[str, Any]:
    """Tensors and lists in a file, by name; a lone one has the name of features. Tensors are mapped.

    Raises:
        OSError: the file cannot be read. ValueError: it is no such file; names it.
    """
    if kind_of(path) == ".safetensors":
        names, _ = read_header(path)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names}
    contents = read_saved(path)
    named = contents if isinstance(contents, dict) else {FEATURES[0]: contents}
    return {str(name): value for name, value in named.items()}


def arrays_in(contents: Any) -> Arrays:
    """The tensors of numbers, of an image's size, among what there is of it, by their names; bfloat16 as float32."""
    found = {}
    for name, value in (contents if isinstance(contents, dict) else {"": contents}).items():
        plain = isinstance(value, Tensor) and value.dtype in _PLAIN and value.layout == torch.strided
        if plain and not value.is_meta and value.numel() <= LARGEST_IMAGE:
            found[str(name)] = (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    return found


def _names(listed: Any, path: Path, count: int) -> list[str]:
    """The images' ids; raises a ValueError where they are not one an image, all different."""
    names = listed.tolist() if isinstance(listed, Tensor) else listed if isinstance(listed, (list, tuple)) else []
    found = [str(name) for name in names if isinstance(name, (str, int))]
    if len(found) != count or len(set(found)) != count:
        raise ValueError(f"{path}: its ids are not {count} different names or numbers, one an image")
    return found


def _of_images(value: Any) -> bool:
    """Whether it is what features of images are that no name tells."""
    return isinstance(value, list) or (isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point())
