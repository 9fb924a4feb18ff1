"""Scenes: objects with a shape, a colour, a size and a texture, placed over a background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

IMAGE_SIZE = 224

SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "crescent")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black", "white")
SIZES = ("small", "large")
TEXTURES = ("plain", "striped", "dotted", "checkered")
BACKGROUNDS = ("sand", "grass", "water", "wood", "stone", "snow")

RADII = {"small": (15.0, 19.0), "large": (28.0, 35.0)}
MAX_TILT = 0.26  # radians: a tilted square stays a square, a tilted cross does not become an x
MARGIN = 4.0  # pixels between two objects, and between an object and the border
OBJECT_COUNTS = (2, 3, 4, 5, 6)
NEAR_DUPLICATE_RATE = 0.4  # share of the odd scenes

SPLITS = ("train", "dev", "test")

Attribute = Literal["shape", "colour", "size", "texture"]


@dataclass(frozen=True)
class SceneObject:
    """One object: its four attributes, and where it lies.

    ``x``, ``y`` (the centre, y downwards) and ``radius`` are in pixels, ``tilt`` in radians.
    """

    shape: str
    colour: str
    size: str
    texture: str
    x: float
    y: float
    radius: float
    tilt: float

    @property
    def attributes(self) -> tuple[str, str, str, str]:
        """Shape, colour, size and texture."""
        return self.shape, self.colour, self.size, self.texture


@dataclass(frozen=True)
class Scene:
    """A background and 2 to 6 objects, no two of them with the same four attributes.

    ``drawing_seed`` decides what no caption tells: the grain of the background, the exact hues, the texture's phase.
    """

    background: str
    objects: tuple[SceneObject, ...]
    drawing_seed: tuple[int, ...]


def sample_scene(seed: int, split: str, index: int) -> Scene:
    """Scene number ``index`` of a split, the same whenever and in whichever process it is asked for.

    Some scenes of odd index are near duplicates: the scene before them with one attribute of one object changed.
    """
    identity = (seed, SPLITS.index(split), index)
    rng = np.random.default_rng(identity)
    if index % 2 and rng.random() < NEAR_DUPLICATE_RATE:
        return change_one_attribute(sample_scene(seed, split, index - 1), rng)
    objects: list[SceneObject] = []
    count = int(rng.choice(OBJECT_COUNTS))
    while len(objects) < count:
        candidate = _sample_object(rng)
        if _fits(candidate, objects):
            objects.append(candidate)
    return Scene(str(rng.choice(BACKGROUNDS)), tuple(objects), identity)


def change_one_attribute(scene: Scene, rng: np.random.Generator) -> Scene:
    """A scene with another shape, colour or texture of one object, or with a large object made small."""
    while True:
        place = int(rng.integers(len(scene.objects)))
        changed = _change(scene.objects[place], rng)
        before, after = scene.objects[:place], scene.objects[place + 1 :]
        if changed.attributes not in [other.attributes for other in (*before, *after)]:
            return replace(scene, objects=(*before, changed, *after))


def _change(thing: SceneObject, rng: np.random.Generator) -> SceneObject:
    attributes: list[Attribute] = ["shape", "colour", "texture"]
    if thing.size == "large":  # a small object made large could cover its neighbours
        attributes.append("size")
    match attributes[int(rng.integers(len(attributes)))]:
        case "shape":
            return replace(thing, shape=_another(SHAPES, thing.shape, rng))
        case "colour":
            return replace(thing, colour=_another(COLOURS, thing.colour, rng))
        case "texture":
            return replace(thing, texture=_another(TEXTURES, thing.texture, rng))
        case "size":
            return replace(thing, size="small", radius=float(rng.uniform(*RADII["small"])))


def _another(values: Sequence[str], value: str, rng: np.random.Generator) -> str:
    return str(rng.choice([other for other in values if other != value]))


def _sample_object(rng: np.random.Generator) -> SceneObject:
    size = str(rng.choice(SIZES))
    radius = float(rng.uniform(*RADII[size]))
    x, y = rng.uniform(radius + MARGIN, IMAGE_SIZE - radius - MARGIN, size=2)
    return SceneObject(
        shape=str(rng.choice(SHAPES)),
        colour=str(rng.choice(COLOURS)),
        size=size,
        texture=str(rng.choice(TEXTURES)),
        x=float(x),
        y=float(y),
        radius=radius,
        tilt=float(rng.uniform(-MAX_TILT, MAX_TILT)),
    )


def _fits(candidate: SceneObject, objects: Sequence[SceneObject]) -> bool:
    """Whether the candidate's disc keeps clear of the others' and its attributes are its own."""
    return all(
        candidate.attributes != other.attributes
        and np.hypot(candidate.x - other.x, candidate.y - other.y) > candidate.radius + other.radius + MARGIN
        for other in objects
    )
