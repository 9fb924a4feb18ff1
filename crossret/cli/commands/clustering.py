"""The command that makes few regions of many: `cluster-regions`."""

from __future__ import annotations

from typing import Annotated

from crossret.cli.options import DataDirectory, NewDirectory, Threads, option, use_threads
from crossret.cli.output import say


def cluster_regions(
    data: DataDirectory,
    output: NewDirectory,
    clusters: Annotated[int, option("Centres of each image.", min=1)] = 32,
    threads: Threads = None,
) -> None:
    """Replace the regions of every image by the centres of their clusters.

    Deterministic k-means over each image's regions, all splits, in bounded memory.
    Captions are linked, or copied; boxes and grounding are left out, because a
    centre has no place in the picture. The directory is there when it is whole.

    \b
    Examples:
      crossret cluster-regions data/f30k_100 --output data/f30k_32
      crossret cluster-regions data/coco_100 --output data/coco_16 --clusters 16
    """
    from crossret.data.clustered import cluster_directory
    from crossret.terminal import progress_bar

    use_threads(threads)
    with progress_bar("clustering") as progress:
        counts = cluster_directory(data, output, clusters=clusters, progress=progress)
    say(f"{output}: {clusters} centres for each of {sum(counts.values()):,} images ({', '.join(counts)})")
