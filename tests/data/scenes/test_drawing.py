"""Pictures: the paint that was asked for, where it was asked for, with smooth edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.data.scenes.drawing import PAINTS, draw_scene
from crossret.data.scenes.world import (
    COLOURS,
    IMAGE_SIZE,
    SHAPES,
    TEXTURES,
    Scene,
    SceneObject,
    sample_scene,
)

RING = SceneObject("ring", "red", "large", "plain", x=60.0, y=150.0, radius=30.0, tilt=0.1)
STAR = SceneObject("star", "blue", "small", "dotted", x=160.5, y=60.0, radius=16.0, tilt=-0.2)
SCENE = Scene("sand", (RING, STAR), (0, 0, 7))


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_a_scene_has_one_picture_with_its_objects_inside(index):
    scene = sample_scene(0, "train", index)
    one, other = draw_scene(scene), draw_scene(scene)
    np.testing.assert_array_equal(one.pixels, other.pixels)
    assert one.pixels.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
    assert one.pixels.dtype == np.uint8
    assert one.object_boxes.shape == (len(scene.objects), 4)
    assert one.object_boxes.dtype == np.float32
    assert one.object_boxes.min() >= 0
    assert one.object_boxes.max() <= IMAGE_SIZE
    for thing, (x0, y0, x1, y1) in zip(scene.objects, one.object_boxes, strict=True):
        assert thing.x - thing.radius - 1 <= x0 < thing.x < x1 <= thing.x + thing.radius + 1
        assert thing.y - thing.radius - 1 <= y0 < thing.y < y1 <= thing.y + thing.radius + 1
        assert min(x1 - x0, y1 - y0) > thing.radius


@pytest.mark.parametrize("colour", COLOURS)
def test_a_plain_object_has_its_colour(colour):
    thing = replace(RING, shape="circle", colour=colour)
    pixels = draw_scene(replace(SCENE, objects=(thing,))).pixels.astype(float)
    inside = pixels[140:160, 50:70].mean(axis=(0, 1))
    distances = {name: np.abs(inside - paint).sum() for name, paint in PAINTS.items()}
    assert min(distances, key=lambda name: distances[name]) == colour


def test_shapes_and_textures_are_told_apart_and_plain_is_plain():
    textures = {texture: inside_of(replace(RING, shape="square", texture=texture)) for texture in TEXTURES}
    spread = {texture: pixels.std(axis=(0, 1)).mean() for texture, pixels in textures.items()}
    assert spread.pop("plain") < 6 < 20 < min(spread.values())
    for pictures in (list(textures.values()), [inside_of(replace(RING, shape=shape), 35) for shape in SHAPES]):
        assert all((one != other).mean() > 0.02 for n, one in enumerate(pictures) for other in pictures[:n])


def inside_of(thing, reach=15):
    return draw_scene(replace(SCENE, objects=(thing,))).pixels[150 - reach : 150 + reach, 60 - reach : 60 + reach]
