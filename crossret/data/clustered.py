"""A data directory whose regions are replaced by their centres, made of another split by split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.data.clustering import centres_of, cluster_regions
from crossret.data.directories import link_file, list_splits
from crossret.data.precomputed import PrecomputedDataset, captions_path, features_path
from crossret.files.atomic import atomic_write
from crossret.files.directories import new_directory

_BLOCK_BYTES = 64 * 2**20


def cluster_directory(
    data: Path, output: Path, *, clusters: int, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Write every split of ``data`` to ``output`` with the centres of its images' regions as their features.

    It is there when it is complete. Images are mapped and taken in blocks: memory is bounded, whatever their number.
    Rows that are there five times are clustered and written once. An image with fewer different regions than
    ``clusters`` repeats its centres in order, as the format has as many rows for all. Float16 stays float16. Captions
    are hard-linked, or copied where they cannot be. Boxes and grounding stay behind: a centre has no place in the
    picture.

    Args:
        data: a directory in the precomputed-feature format.
        output: the directory to write, absent or empty, not inside ``data``.
        clusters: centres of an image, 1 to its number of regions.
        progress: called with (images done, all images) after every block.

    Returns:
        The number of images of each split.

    Raises:
        OSError: a file cannot be read or written; FileExistsError where ``output`` is a file or not empty.
        ValueError: ``output`` is ``data`` or inside it, ``data`` has no split, or a split is malformed, has fewer
            regions than ``clusters`` or features that are not finite; names the file and the image.
    """
    with new_directory(output, data) as directory:
        sets = {split: PrecomputedDataset(data, split) for split in list_splits(data)}
        for split, images in sets.items():
            if not 1 <= clusters <= images.n_regions:
                wanted = f"clusters must be 1 to its {images.n_regions} regions, not {clusters}"
                raise ValueError(f"{features_path(data, split)}: {wanted}")
        done, total = 0, sum(images.n_images for images in sets.values())
        for split, images in sets.items():
            block = max(1, _BLOCK_BYTES // (4 * images.n_regions * images.image_dim))
            with atomic_write(features_path(directory, split)) as file:
                shape = (images.n_images, clusters, images.image_dim)
                header = {"descr": images.features.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for begin in range(0, images.n_images, block):
                    rows = images.feature_rows[begin : begin + block]
                    file.write(_centres(images.features[rows], features_path(data, split), rows, clusters).tobytes())
                    done += len(rows)
                    if progress is not None:
                        progress(done, total)
            link_file(captions_path(data, split), captions_path(directory, split))
    return {split: images.n_images for split, images in sets.items()}


def _centres(
    features: NDArray[np.floating], path: Path, rows: NDArray[np.int64], clusters: int
) -> NDArray[np.floating]:
    finite = np.isfinite(features).all(axis=(1, 2))
    if not finite.all():
        raise ValueError(f"{path}: row {rows[finite.argmin()]} has features that are not finite")
    regions = torch.from_numpy(features)
    centres, counts = centres_of(regions, cluster_regions(regions, clusters=clusters), clusters)
    order = torch.arange(clusters) % counts[:, None]
    return centres.gather(1, order[:, :, None].expand_as(centres)).numpy()
