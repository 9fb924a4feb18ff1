"""render_scenes: a directory of pictures, captions, regions and features in the precomputed format."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path

import numpy as np

from crossret import system
from crossret.data.precomputed import boxes_path, captions_path, features_path
from crossret.data.scenes.layout import MANIFEST, MAX_IMAGES, grounding_path, picture_path
from crossret.data.scenes.task import Rendered, Task
from crossret.data.scenes.workers import run_tasks
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied
from crossret.files.json import read_json
from crossret.progress import Progress

FORMAT_VERSION = 1
SCENES_PER_TASK = 10


def render_scenes(
    directory: str | os.PathLike[str],
    *,
    train: int = 4000,
    dev: int = 500,
    test: int = 1000,
    seed: int = 0,
    grid: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Render three splits of scenes into a directory: a new one, an empty one, or one with scenes to replace.

    For each split of N images: ``{split}_ims.npy`` (N, 12, 256) float32 region features; ``{split}_caps.txt``, five
    captions an image; ``images/{split}/{index:05d}.png``, 224 x 224 RGB; ``{split}_boxes.npy`` (N, 12, 4) float32, the
    regions' x0, y0, x1, y1 in pixels; ``{split}_grounding.jsonl``, for each caption
    ``{"words": [...], "pos": [...], "named": [[word index, [x0, y0, x1, y1]], ...]}``, the Universal POS tag of each
    word and the box of the object that each noun names. With a grid the regions are 49 instead of 12, and the rest is
    the same. ``scenes.json`` (format version, seed, counts, whether the regions are a grid, whether they are all there)
    is written first with ``finished`` false and last with true. What the files hold depends on the counts, the seed and
    the grid only, not on the number of workers.

    Args:
        train, dev, test: numbers of images, each 1 to 100,000.
        seed: not negative; decides everything that is random.
        grid: the regions are the 7 x 7 cells of the picture in raster order, 32 x 32 pixels each, instead of those that
            a detector would propose.
        workers: processes; None takes one for every core that this process may use. A script that has more than one
            begins by ``if __name__ == "__main__":``, as for ``multiprocessing``.
        progress: called with (images rendered, images in all) now and then.

    Raises:
        ValueError: a count is out of bounds, ``workers`` is less than 1, or ``seed`` is negative.
        FileExistsError: the directory holds something else than scenes.
        BlockingIOError: another process is rendering there.
        OSError: the directory cannot be written.
        ChildProcessError: a worker died, as one does that the system stops for want of memory.
    """
    counts = {"train": train, "dev": dev, "test": test}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1 image, got {count}")
        if count > MAX_IMAGES:
            raise ValueError(f"{name} must be at most {MAX_IMAGES:,} images, got {count:,}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if workers is None:
        workers = system.cores()
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")

    root = Path(directory)
    with occupied(root):
        _check_replaceable(root)
        _render(root, counts, seed, grid, workers, progress)


def _render(
    root: Path,
    counts: dict[str, int],
    seed: int,
    grid: bool,
    workers: int,
    progress: Progress | None,
) -> None:
    manifest = {"format": FORMAT_VERSION, "seed": seed, "counts": counts, "grid": grid}
    _write_manifest(root, {**manifest, "finished": False})
    for split in counts:
        _make_room(picture_path(root, split, 0).parent)
    tasks = {split: _tasks(root, seed, split, count, grid) for split, count in counts.items()}
    done = 0
    # Closed at once when anything is raised, or the workers would go on.
    with closing(run_tasks([task for split in tasks.values() for task in split], workers)) as results:
        for split, split_tasks in tasks.items():
            parts = []
            for task in split_tasks:
                parts.append(next(results))
                done += task.last - task.first
                if progress is not None:
                    progress(done, sum(counts.values()))
            _write_split(root, split, parts)
    _write_manifest(root, {**manifest, "finished": True})


def _check_replaceable(root: Path) -> None:
    """Refuse a directory whose files may be somebody's: there is something in it, and no manifest of scenes."""
    # Hidden files are never written over, and one of them may be left of a manifest whose writer was killed.
    if not root.is_dir() or all(path.name.startswith(".") for path in root.iterdir()):
        return
    try:
        manifest = read_json(root / MANIFEST)
    except (FileNotFoundError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not manifest.keys() >= {"format", "seed", "counts"}:
        raise FileExistsError(
            f"{root}: not empty, and no {MANIFEST} of rendered scenes is in it; choose a new or an empty directory"
        )


def _write_manifest(root: Path, manifest: dict[str, object]) -> None:
    with atomic_write(root / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=2).encode() + b"\n")


def _make_room(images: Path) -> None:
    """Make the folder, or empty it of the pictures that an earlier, perhaps larger rendering left."""
    images.mkdir(parents=True, exist_ok=True)
    for path in images.iterdir():
        if re.fullmatch(r"\d{5,}\.png", path.name):
            path.unlink()


def _tasks(root: Path, seed: int, split: str, count: int, grid: bool) -> list[Task]:
    return [
        Task(str(root), seed, split, first, min(first + SCENES_PER_TASK, count), grid)
        for first in range(0, count, SCENES_PER_TASK)
    ]


def _write_split(root: Path, split: str, parts: list[Rendered]) -> None:
    for path, arrays in (
        (features_path(root, split), [part.features for part in parts]),
        (boxes_path(root, split), [part.boxes for part in parts]),
    ):
        with atomic_write(path) as file:
            np.save(file, np.concatenate(arrays), allow_pickle=False)
    for path, lines in (
        (captions_path(root, split), [line for part in parts for line in part.captions]),
        (grounding_path(root, split), [line for part in parts for line in part.grounding]),
    ):
        with atomic_write(path) as file:
            file.write("".join(line + "\n" for line in lines).encode())
