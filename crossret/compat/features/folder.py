"""Region features in a folder, one file an image: .npz, .npy, .safetensors or .pt."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from crossret.compat.features.images import Arrays, Image, Images
from crossret.compat.features.kinds import ENDINGS, kind_of
from crossret.compat.features.npz import members_of
from crossret.compat.features.rows import read_wanted
from crossret.compat.features.tensors import arrays_in, read_tensors
from crossret.data.pictures import files_below, find_by_ids, id_of
from crossret.data.precomputed import PICTURES, is_name
from crossret.files.arrays import map_array
from crossret.files.features import FEATURE_DTYPES
from crossret.files.regular import LARGEST
from crossret.files.unicode import is_unicode

_NAMED = 5  # files left out, at most


class Folder(Images):
    """Files of one kind in a folder and in those inside it, but hidden ones: a ``Source``.

    A file is of the picture that its name tells without its ending: ``391895.npz``, ``red kite.jpg.npz``. Files are
    read twice, first their headers for how many regions there are; no more than one is in memory. What has another
    ending than features have is left out, and told by a warning.

    Args:
        path: the folder.
        ids: a file with the id of an image a line: which images are wanted and in which order, perhaps repeatedly; an
            id tells a file as ``find_by_ids`` has it. Without ids all images come, by their files' names.
        boxes: another folder, with files of boxes (k, 4), x0, y0, x1, y1 in pixels, called as those of the features;
            None where boxes are in the same files or there are none.
        dataset, box_dataset: names of the arrays of features and of boxes; by default known ones.

    Raises:
        OSError: a file cannot be read.
        ValueError: a folder is empty or has files of several kinds, there is none of an image or several, or a file is
            malformed; names it. Contents of files are read, and their errors come, as the object is iterated over.
    """

    def __init__(
        self,
        path: Path,
        ids: Path | None = None,
        boxes: Path | None = None,
        dataset: str | None = None,
        box_dataset: str | None = None,
    ) -> None:
        self.name, self._names = str(path), (dataset, box_dataset)
        files = _files(path)
        if ids is None:
            self.ids, self._files = [name for name, _ in files], [file for _, file in files]
        else:
            self.ids = read_wanted(ids)
            self._files = find_by_ids(f"{path}: {{}} files", files, self.ids)
        self.total = len(self._files)
        self._boxes: Sequence[Path] | None = None
        if boxes is not None:
            own = {file: name for name, file in files}
            self._boxes = find_by_ids(f"{boxes}: {{}} files", _files(boxes), [own[file] for file in self._files])

    @contextmanager
    def opened(self, number: int) -> Iterator[Image]:
        with ExitStack() as files:
            boxes = None if self._boxes is None else _arrays(self._boxes[number], files)
            yield Image(_arrays(self._files[number], files), boxes, self._names)


def _arrays(path: Path, files: ExitStack) -> tuple[str, Arrays]:
    """A file of one image and its arrays, by their names; that of .npy has none."""
    kind = kind_of(path)
    if os.path.getsize(path) > LARGEST:
        raise ValueError(f"{path}: has more than {LARGEST:,} bytes, which no image's features have")
    if kind == ".npy":
        return str(path), {"": map_array(path, ndim=(1, 2, 3), dtypes=FEATURE_DTYPES, any_order=True)}
    if kind == ".npz":
        return str(path), members_of(path, files)
    if kind not in (".safetensors", ".pt"):
        raise ValueError(f"{path}: a {kind} file, which is not one image's")
    return str(path), arrays_in(read_tensors(path))


def _files(directory: Path) -> list[tuple[str, Path]]:
    """The ids and the files of a folder's images, by the files' names."""
    there = sorted(files_below(directory))
    found = [path for path in there if path.suffix.lower() in ENDINGS]
    if not found:
        raise ValueError(f"{directory}: no files of features in it: {', '.join(ENDINGS)}")
    if others := sorted(set(there).difference(found)):
        named = ", ".join(path.name for path in others[:_NAMED]) + ", ..." * (len(others) > _NAMED)
        warnings.warn(f"{directory}: left out, as they are no features: {len(others):,} ({named})", stacklevel=3)
    files: dict[str, Path] = {}
    for path in found:
        if path.suffix != found[0].suffix:
            raise ValueError(f"{path}: not a {found[0].suffix} file as {found[0].name}, and a folder holds one kind")
        name = PurePosixPath(id_of(path.relative_to(directory).as_posix()))
        own = str(name.with_suffix("") if name.suffix.lower() in PICTURES else name)
        if not is_unicode(own) or not is_name(own):
            raise ValueError(f"{path}: its name is none of a picture, as it has white space or control characters")
        if own in files:
            raise ValueError(f"{path}: of the same image as {files[own].name}: {own}")
        files[own] = path
    return list(files.items())
