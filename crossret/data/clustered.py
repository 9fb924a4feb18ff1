"""A data directory whose regions are replaced by their centres, made of another split by split."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.clustering import cluster_regions
from crossret.data.precomputed import PrecomputedDataset, captions_path, features_path
from crossret.files import atomic_write

_BLOCK_BYTES = 64 * 2**20


def cluster_directory(
    data: Path, output: Path, *, clusters: int, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Write every split of ``data`` to ``output`` with the centres of its images' regions as their features.

    Images are mapped and taken in blocks: memory is bounded, whatever their number. Rows that are there five times are
    clustered and written once. An image with fewer different regions than ``clusters`` repeats its centres in order,
    as the format has as many rows for all. Captions are hard-linked, or copied where they cannot be. Boxes and
    grounding stay behind: a centre has no place in the picture.

    Args:
        data: a directory in the precomputed-feature format.
        output: the directory to write, absent or empty.
        clusters: centres of an image, 1 to its number of regions.
        progress: called with (images done, all images) after every block.

    Returns:
        The number of images of each split.

    Raises:
        FileExistsError: ``output`` is not empty.
        OSError: a file cannot be read or written.
        ValueError: ``data`` has no split, or a split is malformed, has fewer regions than ``clusters`` or features
            that are not finite; names the file and the image.
    """
    splits = sorted(path.name.removesuffix("_ims.npy") for path in data.glob("*_ims.npy"))
    if not splits:
        raise ValueError(f"{data}: no SPLIT_ims.npy in it")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output}: not empty; choose a new or an empty directory")
    sets = {split: PrecomputedDataset(data, split) for split in splits}
    for split, images in sets.items():
        if not 1 <= clusters <= images.n_regions:
            raise ValueError(
                f"{features_path(data, split)}: clusters must be 1 to its {images.n_regions} regions, not {clusters}"
            )
    output.mkdir(parents=True, exist_ok=True)
    done, total = 0, sum(images.n_images for images in sets.values())
    for split, images in sets.items():
        block = max(1, _BLOCK_BYTES // (4 * images.n_regions * images.image_dim))
        with atomic_write(features_path(output, split)) as file:
            shape = (images.n_images, clusters, images.image_dim)
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for begin in range(0, images.n_images, block):
                rows = images.feature_rows[begin : begin + block]
                file.write(_centres(images.features[rows], features_path(data, split), rows, clusters).tobytes())
                done += len(rows)
                if progress is not None:
                    progress(done, total)
        _link(captions_path(data, split), captions_path(output, split))
    return {split: images.n_images for split, images in sets.items()}


def _centres(features: NDArray[np.float32], path: Path, rows: NDArray[np.int64], clusters: int) -> NDArray[np.float32]:
    finite = np.isfinite(features).all(axis=(1, 2))
    if not finite.all():
        raise ValueError(f"{path}: row {rows[finite.argmin()]} has features that are not finite")
    centres, _, counts = cluster_regions(torch.from_numpy(features), clusters=clusters)
    order = torch.arange(clusters) % counts[:, None]
    return centres.gather(1, order[:, :, None].expand_as(centres)).numpy()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        with open(source, "rb") as captions, atomic_write(target) as file:
            shutil.copyfileobj(captions, file)
