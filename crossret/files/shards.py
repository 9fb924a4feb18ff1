"""A corpus of features in shards: directories of features that are one corpus in the order of a list of them.

``shards.json`` in the corpus's directory names them: ``{"dim": D, "shards": [{"path": "00000", "items": n}, …]}``,
paths relative to it. A machine need not hold all of them: what the list says is enough to know which items there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from crossret.files.features import FEATURES, VALUES, StoredItems
from crossret.files.json import read_json_object

SHARDS = "shards.json"


@dataclass(frozen=True)
class Shard:
    """Some successive items of a corpus.

    Attributes:
        directory: where its features are, as ``StoredItems.of_directory`` reads them.
        start: which item of the corpus is its first.
        items: how many it has.
    """

    directory: Path
    start: int
    items: int


@dataclass(frozen=True)
class StoredShards:
    """A corpus on the disk, in one or more shards.

    Attributes:
        path: file that errors name: the list of its shards, or the features of a corpus that is not in shards.
        shards: in the order of their items.
        dim: D, of all features.
    """

    path: Path
    shards: tuple[Shard, ...]
    dim: int

    def __len__(self) -> int:
        return self.shards[-1].start + self.shards[-1].items

    @staticmethod
    def of_directory(directory: Path) -> StoredShards:
        """Shards that ``shards.json`` lists or, without one, a single shard that is the directory itself.

        Raises:
            OSError: the files are missing or cannot be read.
            ValueError: the list is malformed; or as ``StoredItems.of_directory``.
        """
        path = directory / SHARDS
        if not path.exists():
            whole = StoredItems.of_directory(directory)
            return StoredShards(whole.path, (Shard(directory, 0, len(whole)),), whole.dim)
        beside = next((name for name in (FEATURES, VALUES) if (directory / name).exists()), None)
        if beside is not None:
            raise ValueError(f"{directory}: holds both {SHARDS} and {beside}; a corpus is one of them")
        contents = read_json_object(path)
        if contents.keys() != {"dim", "shards"} or not isinstance(contents["shards"], list) or not contents["shards"]:
            raise ValueError(f"{path}: expected an object of dim and shards, a list that is not empty")
        dim = _count(contents["dim"], f"{path}: dim")
        shards: list[Shard] = []
        for number, entry in enumerate(contents["shards"]):
            place = f"{path}: shard {number}"
            if not isinstance(entry, dict) or entry.keys() != {"path", "items"}:
                raise ValueError(f"{place}: expected an object of path and items")
            start = shards[-1].start + shards[-1].items if shards else 0
            shards.append(Shard(directory / _within(entry["path"], place), start, _count(entry["items"], place)))
        counts = Counter(shard.directory for shard in shards)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"{path}: lists {twice.name} twice")
        return StoredShards(path, tuple(shards), dim)

    def absolute(self) -> StoredShards:
        """These shards, by paths that hold in whichever directory a process is."""
        shards = tuple(replace(shard, directory=shard.directory.absolute()) for shard in self.shards)
        return replace(self, path=self.path.absolute(), shards=shards)

    def open(self, number: int) -> StoredItems:
        """The features of one shard.

        Raises:
            OSError: it is not on this machine, or cannot be read.
            ValueError: it is not what the list says; or as ``StoredItems.of_directory``.
        """
        shard = self.shards[number]
        items = StoredItems.of_directory(shard.directory)
        if (len(items), items.dim) != (shard.items, self.dim):
            raise ValueError(
                f"{items.path}: {len(items)} items of {items.dim} dimensions, but {self.path} says "
                f"{shard.items} of {self.dim}"
            )
        return items

    def find(self, item: int) -> tuple[int, int]:
        """Shard that an item of the corpus is in, and the item's place in it."""
        number = bisect_right(self.shards, item, key=lambda shard: shard.start) - 1
        return number, item - self.shards[number].start

    def stored(self, item: int) -> tuple[StoredItems, int]:
        """Shard of an item, opened, and the item's place in it; raises as ``open``."""
        number, place = self.find(item)
        return self.open(number), place


def _count(value: Any, place: str) -> int:
    if type(value) is not int or not 0 < value < 2**63:
        raise ValueError(f"{place}: expected a number of at least 1, not {value!r}")
    return value


def _within(value: Any, place: str) -> PurePosixPath:
    path = PurePosixPath(value) if isinstance(value, str) else PurePosixPath()
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in str(value):
        raise ValueError(f"{place}: expected a path within this directory, not {value!r}")
    return path
