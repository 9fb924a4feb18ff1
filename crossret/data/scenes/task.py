"""One task of a rendering: some consecutive scenes of a split, their pictures written and the rest returned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crossret.data.scenes.captions import Caption, describe
from crossret.data.scenes.drawing import draw_scene
from crossret.data.scenes.features import region_features
from crossret.data.scenes.layout import picture_path
from crossret.data.scenes.regions import grid_boxes, sample_boxes
from crossret.data.scenes.world import SPLITS, sample_scene
from crossret.data.vocabulary import tokenize
from crossret.files.naming import named_errors

PNG_COMPRESSION = 1  # level of 9: files as small as by the default for these pictures, in half the time

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """Scenes ``first`` to ``last`` - 1 of a split, for a data set in ``directory``; their regions, a grid or not."""

    directory: str
    seed: int
    split: str
    first: int
    last: int
    grid: bool


@dataclass(frozen=True)
class Rendered:
    """Contributions of a task to the files of its split.

    Attributes:
        features: (scenes, k, 256) float32, of 12 proposed regions or of 49 cells.
        boxes: (scenes, k, 4) float32.
        captions, grounding: five lines a scene.
    """

    features: Floats
    boxes: Floats
    captions: list[str]
    grounding: list[str]


def render_task(task: Task) -> Rendered:
    """Draw, describe and measure the task's scenes; the folder of the pictures is there already."""
    features, boxes, captions, grounding = [], [], [], []
    for index in range(task.first, task.last):
        scene = sample_scene(task.seed, task.split, index)
        drawing = draw_scene(scene)
        rng = np.random.default_rng((task.seed, SPLITS.index(task.split), index, 2))
        proposed = sample_boxes(drawing.object_boxes, rng)  # with a grid too: the captions are then the same
        scene_boxes = grid_boxes() if task.grid else proposed
        scene_captions = describe(scene, rng)
        # Not renamed into place one by one: the manifest comes after them all, and 5,500 flushes would take longer.
        path = picture_path(task.directory, task.split, index)
        with named_errors(path):
            path.write_bytes(_png(drawing.pixels))
        features.append(region_features(drawing.pixels, scene_boxes))
        boxes.append(scene_boxes)
        captions += [caption.text for caption in scene_captions]
        grounding += [_grounding(caption, drawing.object_boxes) for caption in scene_captions]
    return Rendered(np.stack(features), np.stack(boxes), captions, grounding)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "png", compress_level=PNG_COMPRESSION)
    return file.getvalue()


def _grounding(caption: Caption, object_boxes: Floats) -> str:
    named = [[word, object_boxes[number].tolist()] for word, number in caption.named]
    return json.dumps({"words": tokenize(caption.text), "pos": caption.pos, "named": named})
