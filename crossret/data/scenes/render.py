"""render_scenes: a directory of pictures, captions, regions and features in the precomputed format."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crossret.data.scenes.captions import Caption, describe
from crossret.data.scenes.drawing import draw_scene
from crossret.data.scenes.features import region_features
from crossret.data.scenes.regions import sample_boxes
from crossret.data.scenes.world import SPLITS, sample_scene
from crossret.data.vocabulary import tokenize
from crossret.files import atomic_write

MANIFEST = "scenes.json"
FORMAT_VERSION = 1
SCENES_PER_TASK = 50
PNG_COMPRESSION = 1  # of 9: as small as the default for these pictures, in half the time

BLAS_THREADS = "OPENBLAS_NUM_THREADS"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class _Task:
    directory: Path
    seed: int
    split: str
    first: int
    last: int  # exclusive


@dataclass(frozen=True)
class _Rendered:
    """What one task adds to the split's files, one entry a scene or five a scene."""

    features: Floats
    boxes: Floats
    captions: list[str]
    grounding: list[str]


def render_scenes(
    directory: str | os.PathLike[str],
    *,
    train: int = 4000,
    dev: int = 500,
    test: int = 1000,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Render three splits of scenes into a directory, which is made if it is not there.

    For each split of N images: ``{split}_ims.npy`` (N, 12, 256) float32 region features; ``{split}_caps.txt``, five
    captions an image; ``images/{split}/{index:05d}.png``, 224 x 224 RGB; ``{split}_boxes.npy`` (N, 12, 4) float32, the
    regions' x0, y0, x1, y1 in pixels; ``{split}_grounding.jsonl``, for each caption
    ``{"words": [...], "named": [[word index, [x0, y0, x1, y1]], ...]}``, the box of the object that each noun names.
    ``scenes.json`` (format version, seed, counts) is removed first and written last: a directory that has it is
    complete. What the files hold depends on the counts and the seed only, not on the number of workers.

    Args:
        train, dev, test: numbers of images, each at least 1.
        seed: not negative; decides everything that is random.
        workers: processes; None takes one for every core that this process may use. They are spawned, so a script
            that calls this with more than one worker needs Python's usual ``if __name__ == "__main__":``.
        progress: called with (images rendered, images in all) now and then.

    Raises:
        ValueError: a count or ``workers`` is less than 1, or ``seed`` is negative.
        OSError: the directory cannot be written.
    """
    counts = {"train": train, "dev": dev, "test": test}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1 image, got {count}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if workers is None:
        workers = len(os.sched_getaffinity(0))
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")

    root = Path(directory)
    for split in counts:
        _make_room(root / "images" / split)
    (root / MANIFEST).unlink(missing_ok=True)
    tasks = {split: _tasks(root, seed, split, count) for split, count in counts.items()}
    results = _run([task for split in tasks.values() for task in split], workers)
    done = 0
    for split, split_tasks in tasks.items():
        parts = []
        for task in split_tasks:
            parts.append(next(results))
            done += task.last - task.first
            if progress is not None:
                progress(done, sum(counts.values()))
        _write_split(root, split, parts)
    manifest = {"format": FORMAT_VERSION, "seed": seed, "counts": counts}
    with atomic_write(root / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=2).encode() + b"\n")


def _make_room(images: Path) -> None:
    """Make the folder, or empty it of the pictures that an earlier, perhaps larger rendering left."""
    images.mkdir(parents=True, exist_ok=True)
    for path in images.iterdir():
        if re.fullmatch(r"\d{5,}\.png", path.name):
            path.unlink()


def _tasks(root: Path, seed: int, split: str, count: int) -> list[_Task]:
    return [
        _Task(root, seed, split, first, min(first + SCENES_PER_TASK, count))
        for first in range(0, count, SCENES_PER_TASK)
    ]


def _run(tasks: list[_Task], workers: int) -> Iterator[_Rendered]:
    """The tasks' results in the tasks' order."""
    workers = min(workers, len(tasks))
    if workers == 1:
        yield from map(_render, tasks)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_ignore_interrupts)
    try:
        with _one_blas_thread():  # map() submits every task at once, and spawns the workers before it returns
            results = pool.map(_render, tasks)
        yield from results
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Let processes started inside the block use one BLAS thread each: they are as many as the cores already.

    NumPy's BLAS reads this once, while it is loaded, so it has to be in the environment that a worker is born with.
    """
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLAS_THREADS]
        else:
            os.environ[BLAS_THREADS] = before


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the parent alone acts on it, and ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _render(task: _Task) -> _Rendered:
    features, boxes, captions, grounding = [], [], [], []
    for index in range(task.first, task.last):
        scene = sample_scene(task.seed, task.split, index)
        drawing = draw_scene(scene)
        rng = np.random.default_rng((task.seed, SPLITS.index(task.split), index, 2))
        scene_boxes = sample_boxes(drawing.object_boxes, rng)
        scene_captions = describe(scene, rng)
        # Not renamed into place one by one: the manifest comes after them all, and 5,500 flushes would take longer.
        Image.fromarray(drawing.pixels).save(
            task.directory / "images" / task.split / f"{index:05d}.png", compress_level=PNG_COMPRESSION
        )
        features.append(region_features(drawing.pixels, scene_boxes))
        boxes.append(scene_boxes)
        captions += [caption.text for caption in scene_captions]
        grounding += [_grounding(caption, drawing.object_boxes) for caption in scene_captions]
    return _Rendered(np.stack(features), np.stack(boxes), captions, grounding)


def _grounding(caption: Caption, object_boxes: Floats) -> str:
    named = [[word, object_boxes[number].tolist()] for word, number in caption.named]
    return json.dumps({"words": tokenize(caption.text), "named": named})


def _write_split(root: Path, split: str, parts: list[_Rendered]) -> None:
    for name, arrays in (("ims", [part.features for part in parts]), ("boxes", [part.boxes for part in parts])):
        with atomic_write(root / f"{split}_{name}.npy") as file:
            np.save(file, np.concatenate(arrays), allow_pickle=False)
    for name, lines in (
        ("caps.txt", [line for part in parts for line in part.captions]),
        ("grounding.jsonl", [line for part in parts for line in part.grounding]),
    ):
        with atomic_write(root / f"{split}_{name}") as file:
            file.write("".join(line + "\n" for line in lines).encode())
