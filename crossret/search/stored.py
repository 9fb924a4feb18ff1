"""Encoded images or captions on the disk, as `encode` writes them, read as the model scores them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.files.arrays import map_array
from crossret.files.features import FEATURE_DTYPES, StoredItems
from crossret.files.shards import StoredShards
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher
from crossret.search.blocks import REGIONS, WORDS, ShardBlocks, stored_blocks
from crossret.search.manifest import CAPTIONS, IMAGES, MODEL, Manifest
from crossret_kernels.extending import Chosen, FeatureBlock, FeatureBlocks, bounded_runs, release_pages

WHY_OF_MODEL = "the model's weights are not finite or its numbers go beyond float32"


def vectors_file(name: str) -> str:
    """The file of what a model keeps of every item under this name."""
    return f"vectors_{name}.npy"


def side_directory(directory: Path, side: str) -> Path:
    """Where the items of a side are: in the directory of that name where `encode` wrote both, else in this one."""
    inner = directory / side
    return inner if (inner / MODEL).is_file() else directory


def is_encoded(directory: Path) -> bool:
    """Whether a directory holds what `encode` wrote, of either side or of both."""
    return any((directory / part / MODEL).is_file() for part in ("", IMAGES, CAPTIONS))


def check_scored_by_rows(queries: Path, corpus: Path) -> bool:
    """Whether both hold what one model encoded, where a score without the model is to be made of their rows.

    Raises:
        OSError, ValueError: a manifest cannot be read; or its model scores by more than rows, or two are of different
            models: names the directory.
    """
    manifests = {place: Manifest.read(place) for place in (corpus, queries) if (place / MODEL).is_file()}
    for place, manifest in manifests.items():
        if not manifest.config.scored_by_rows:
            raise ValueError(f"{place}: encoded by {manifest.config.kind}, which alone scores it: name its run")
    if len({manifest.weights for manifest in manifests.values()}) > 1:
        raise ValueError(f"{queries}: encoded by another model than {corpus}")
    return len(manifests) == 2


@dataclass(frozen=True)
class StoredEncoded:
    """Encoded items of one side on the disk, of any number: memory maps, in one directory or in shards.

    Attributes:
        directory: where they are.
        manifest: the model that encoded them, and which side they are.
        shards: their rows.
    """

    directory: Path
    manifest: Manifest
    shards: StoredShards

    def __len__(self) -> int:
        return len(self.shards)

    @staticmethod
    def of_directory(directory: Path, side: str | None = None) -> StoredEncoded:
        """Items of a side that `encode` wrote, or `shard` of these.

        Args:
            directory: of the side, or of both where ``side`` says which.
            side: "images" or "captions"; None takes what there is.

        Raises:
            OSError: a file is missing or cannot be read.
            ValueError: a file is malformed, or the items are of the other side; names it.
        """
        place = directory if side is None else side_directory(directory, side)
        if not (place / MODEL).is_file():
            if is_encoded(place):
                raise ValueError(f"{place}: holds encoded {IMAGES} and {CAPTIONS}; name the directory of one of them")
            raise FileNotFoundError(f"{place}: no {MODEL}, as `encode` writes it beside what a model encoded")
        manifest = Manifest.read(place)
        if side is not None and manifest.side != side:
            raise ValueError(f"{place}: holds encoded {manifest.side}, not {side}")
        return StoredEncoded(place, manifest, StoredShards.of_directory(place))

    def check(self, model: Matcher) -> None:
        """Raise a ValueError that names the directory where it is not this model that encoded them."""
        self.manifest.check(model, self.directory, self.shards.dim)

    def items(self, device: torch.device) -> ShardBlocks[Encoded]:
        """Blocks of items to be scored, on a device, in float32."""

        def of_shard(items: StoredItems) -> EncodedItems:
            return EncodedItems(stored_blocks(items, self._row), self._vectors(items), device)

        return ShardBlocks(self.shards, of_shard)

    def why_not_finite(self, item: int) -> str | None:
        """Reason for an item that is not finite in float32: names its file; None where it is finite."""
        stored, place = self.shards.stored(item)
        if not stored.is_finite(place):
            return f"{stored.path}: item {place} is not finite in float32"
        for name, vectors in self._vectors(stored).items():
            with np.errstate(over="ignore"):
                if not np.isfinite(vectors[place].astype(np.float32)).all():
                    return f"{stored.path.parent / vectors_file(name)}: item {place} is not finite in float32"
        return None

    @property
    def _row(self) -> str:
        return REGIONS if self.manifest.side == IMAGES else WORDS

    def _vectors(self, items: StoredItems) -> dict[str, NDArray[np.generic]]:
        return stored_vectors(items, self.manifest)


def stored_vectors(items: StoredItems, manifest: Manifest) -> dict[str, NDArray[np.generic]]:
    """Vectors that a model keeps of some items beside their rows, by name, memory-mapped.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: it is not such an array, or not of these items; names it.
    """
    vectors: dict[str, NDArray[np.generic]] = {}
    for name, shape in manifest.vectors.items():
        path = items.path.parent / vectors_file(name)
        vectors[name] = map_array(path, ndim=1 + len(shape), dtypes=(*FEATURE_DTYPES, "<i8"))
        if vectors[name].shape != (len(items), *shape):
            raise ValueError(f"{path}: shape {vectors[name].shape}, expected {(len(items), *shape)}, one an item")
    return vectors


class EncodedItems:
    """Encoded items of one directory, padded to the longest of a block."""

    def __init__(self, blocks: FeatureBlocks, vectors: dict[str, NDArray[np.generic]], device: torch.device) -> None:
        self.blocks = blocks
        self.vectors = vectors
        self.device = device
        # Rows and vectors are as wide as they are read, which is no less than they are stored.
        row = blocks.staging.size(1) * 8
        beside = sum(8 * math.prod(array.shape[1:]) for array in vectors.values())
        self.item_bytes: NDArray[np.int64] = blocks.offsets.diff().numpy() * row + beside

    def __len__(self) -> int:
        return len(self.blocks)

    def runs(self, most: int) -> list[slice]:
        return bounded_runs(self.item_bytes, most)

    def __getitem__(self, run: slice) -> Encoded:
        return self._encoded(self.blocks[run], run)

    def chosen(self, items: Chosen) -> Iterator[tuple[slice, Encoded]]:
        for run in bounded_runs(self.item_bytes[items], len(items)):
            yield run, self._encoded(self.blocks.take(torch.from_numpy(items[run])), items[run])

    def _encoded(self, block: FeatureBlock, items: slice | Chosen) -> Encoded:
        vectors = {}
        for name, array in self.vectors.items():
            vector = torch.from_numpy(np.array(array[items]))
            vectors[name] = vector.float() if vector.is_floating_point() else vector
            release_pages(array)
        return Encoded(*_padded(block), vectors).to(self.device)


def _padded(block: FeatureBlock) -> tuple[Tensor, Tensor]:
    """(n, L, D) and (n,) lengths of a block of features, which the next one may take the place of."""
    features, lengths, _ = block
    if not isinstance(features, tuple):
        assert isinstance(features, Tensor)
        n, longest = features.shape[:2]
        return features.clone(), torch.full((n,), longest) if lengths is None else lengths
    rows, offsets = (torch.as_tensor(part) for part in features)
    lengths = offsets.diff()
    sequences = rows.new_zeros(len(lengths), int(lengths.max()), rows.size(1))
    sequences[torch.arange(sequences.size(1)) < lengths[:, None]] = rows
    return sequences, lengths
