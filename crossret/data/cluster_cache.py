"""The clusters of a split's regions: found once, kept on the disk, and read from there by every later process."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossret.data.batches import region_blocks
from crossret.data.clustering import cluster_regions
from crossret.data.precomputed import PrecomputedDataset
from crossret.files.arrays import map_array, write_rows
from crossret.files.directories import user_cache
from crossret.files.locks import locked
from crossret.progress import Progress

_BLOCK_BYTES = 64 * 2**20
# Not the directory's own, which a training may have that writes beside its data.
_LOCK = ".crossret-clusters-lock"
_logger = logging.getLogger(__name__)


class Clusters(NamedTuple):
    """The clusters of every image's regions.

    Attributes:
        number: the most that an image has.
        of_regions: (n_images, k) int32, what ``cluster_regions`` gives for every image; read from the disk as it is
            used, where it could be kept there.
    """

    number: int
    of_regions: NDArray[np.int32]


def clusters_of(data: PrecomputedDataset, fingerprint: str, count: int, progress: Progress | None = None) -> Clusters:
    """The clusters that are kept, or are found now and kept for others.

    They are a file of a few bytes a region, not the centres themselves, which are means that cost next to nothing. It
    stands beside the features as ``SPLIT_clusters_COUNT_KEY.npy``, or, where nothing can be written there, in
    ``crossret`` in the user's cache, $XDG_CACHE_HOME or ~/.cache; where that cannot be written either, they last as
    long as the process. The key is made of the fingerprint and of the time at which the features were written: other
    features are never taken for these. Of several processes one finds them, and the others wait for it.

    Args:
        data: the split.
        fingerprint: tells its contents from others'.
        count: as ``cluster_regions``' clusters.
        progress: for what is found now.

    Raises:
        OSError: the features cannot be read, or the disk is full.
        ValueError: as ``cluster_regions``; or what is kept there is something else; names the file.
    """
    features = Path(data.name)
    key = blake2b(f"{fingerprint} {os.stat(features).st_mtime_ns}".encode(), digest_size=8).hexdigest()
    name = f"{features.name.removesuffix('_ims.npy')}_clusters_{count}_{key}.npy"
    places = [directory / name for directory in (features.parent, user_cache())]
    for path in places:
        if path.exists():
            _logger.info("%s: clusters found before are taken", path)
            return Clusters(count, _kept(path, data, count))
    writable = [path for path in places if _is_writable(path.parent)]
    if writable[:1] != places[:1]:
        where = f"in {writable[0]}" if writable else "for this process alone"
        warnings.warn(f"{features.parent} cannot be written: its regions' clusters are kept {where}", stacklevel=2)
    if not writable:
        return Clusters(count, np.concatenate(list(_found(data, count, progress))))
    path = writable[0]
    with locked(path.parent, wait=True, name=_LOCK):
        if not path.exists():  # another process may have written it while this one waited
            with write_rows(path, (data.n_regions,), "<i4") as write:
                for block in _found(data, count, progress):
                    write(block)
    return Clusters(count, _kept(path, data, count))


def _found(data: PrecomputedDataset, count: int, progress: Progress | None) -> Iterator[NDArray[np.int32]]:
    done = 0
    for regions in region_blocks(data, _BLOCK_BYTES):
        found = cluster_regions(regions.features, lengths=regions.lengths, clusters=count)
        yield found.numpy().astype(np.int32)
        done += len(found)
        if progress is not None:
            progress(done, data.n_images)


def _kept(path: Path, data: PrecomputedDataset, count: int) -> NDArray[np.int32]:
    kept: NDArray[np.int32] = map_array(path, ndim=2, dtypes=["<i4"])
    least = 0 if data.lengths is None else -1  # behind an image's regions
    if kept.shape != (data.n_images, data.n_regions) or kept.min() < least or kept.max() >= count:
        raise ValueError(f"{path}: does not hold the {count} clusters of {data.name}; remove it")
    return kept


def _is_writable(directory: Path) -> bool:
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    return os.access(directory, os.W_OK | os.X_OK)
