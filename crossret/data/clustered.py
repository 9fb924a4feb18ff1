"""A data directory whose regions are replaced by their centres, made of another split by split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.data.batches import Regions, region_blocks
from crossret.data.clustering import centres_of, cluster_regions
from crossret.data.directories import link_split, list_splits
from crossret.data.precomputed import IDS, OF_CAPTIONS, PrecomputedDataset, features_path
from crossret.files.arrays import write_rows
from crossret.files.directories import new_directory
from crossret.progress import Progress

_BLOCK_BYTES = 64 * 2**20


def cluster_directory(data: Path, output: Path, *, clusters: int, progress: Progress | None = None) -> dict[str, int]:
    """Write every split of ``data`` to ``output`` with the centres of its images' regions as their features.

    It is there when it is complete. Images are mapped and taken in blocks: memory is bounded, whatever their number.
    Rows that are there five times are clustered and written once. An image with fewer different regions than
    ``clusters`` repeats its centres in order, as many as others have. Float16 stays float16. Captions and names
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
            row, first = (clusters, images.image_dim), done
            with write_rows(features_path(directory, split), row, images.features.dtype.str) as write:
                for regions in region_blocks(images, _BLOCK_BYTES):
                    write(_centres(regions, clusters, images, done - first))
                    done += len(regions.features)
                    if progress is not None:
                        progress(done, total)
            link_split(data, directory, split, [*OF_CAPTIONS, IDS])
    return {split: images.n_images for split, images in sets.items()}


def _centres(regions: Regions, clusters: int, images: PrecomputedDataset, first: int) -> NDArray[np.float32]:
    features = regions.features
    finite = np.isfinite(features.numpy()).all(axis=(1, 2))
    if not finite.all():
        row = images.feature_rows[first + finite.argmin()]
        raise ValueError(f"{images.name}: row {row} has features that are not finite")
    assignment = cluster_regions(features, regions.lengths, clusters=clusters)
    centres, counts = centres_of(features, assignment, clusters)
    order = torch.arange(clusters) % counts[:, None]
    return centres.gather(1, order[:, :, None].expand_as(centres)).numpy()
