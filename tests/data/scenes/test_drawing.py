"""Pictures: the paint that was asked for, where it was asked for, with smooth edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.data.scenes.drawing import PAINTS, draw_scene
from crossret.data.scenes.shapes import signed_distance
from crossret.data.scenes.world import (
    COLOURS,
    IMAGE_SIZE,
    SHAPES,
    TEXTURES,
    Scene,
    SceneObject,
    change_one_attribute,
    sample_scene,
)

RING = SceneObject("ring", "red", "large", "plain", x=60.0, y=150.0, radius=30.0, tilt=0.1)
STAR = SceneObject("star", "blue", "small", "dotted", x=160.5, y=60.0, radius=16.0, tilt=-0.2)
SCENE = Scene("sand", (RING, STAR), (0, 0, 7))


def grid(radius=1.3, step=0.01):
    axis = np.arange(-radius, radius, step, dtype=np.float32)
    return axis[None, :], axis[:, None]


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


@pytest.mark.parametrize("index", range(6))
def test_a_near_duplicate_differs_around_the_changed_object_only(index):
    scene = sample_scene(1, "test", index)
    changed = change_one_attribute(scene, np.random.default_rng(index))
    one, other = draw_scene(scene), draw_scene(changed)
    (place,) = [n for n, thing in enumerate(scene.objects) if thing != changed.objects[n]]
    x0, y0, x1, y1 = one.object_boxes[place].astype(int)
    differs = (one.pixels != other.pixels).any(axis=2)
    assert differs[y0:y1, x0:x1].any()
    thing, shadow = scene.objects[place], 9
    rows, columns = np.nonzero(differs)
    assert np.abs(rows - thing.y).max() <= thing.radius + shadow
    assert np.abs(columns - thing.x).max() <= thing.radius + shadow


@pytest.mark.parametrize("colour", COLOURS)
def test_a_plain_object_has_its_colour(colour):
    thing = replace(RING, shape="circle", colour=colour)
    pixels = draw_scene(replace(SCENE, objects=(thing,))).pixels.astype(float)
    inside = pixels[140:160, 50:70].mean(axis=(0, 1))
    distances = {name: np.abs(inside - paint).sum() for name, paint in PAINTS.items()}
    assert min(distances, key=lambda name: distances[name]) == colour


def test_textures_are_told_apart_and_plain_is_plain():
    spread = {}
    pictures = []
    for texture in TEXTURES:
        pixels = draw_scene(replace(SCENE, objects=(replace(RING, shape="square", texture=texture),))).pixels
        pictures.append(pixels[135:165, 45:75])
        spread[texture] = pictures[-1].std(axis=(0, 1)).mean()
    assert spread.pop("plain") < 6 < 20 < min(spread.values())
    assert all((one != other).any() for n, one in enumerate(pictures) for other in pictures[:n])


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_fill_the_unit_circle_and_are_anti_aliased(shape):
    x, y = grid()
    distance = signed_distance(shape, x, y)
    inside = distance < 0
    assert distance.dtype == np.float32
    assert not inside[np.hypot(x, y) > 1.08].any()
    assert np.abs(np.broadcast_to(y, inside.shape)[inside]).max() > 0.7
    assert 0.2 < inside.mean() * 2.6**2 / np.pi < 0.9
    # Its slope is one next to the outline: what an edge a pixel wide needs.
    down, across = np.gradient(distance, 0.01)
    near = np.abs(distance) < 0.02
    assert np.median(np.hypot(down, across)[near]) == pytest.approx(1, abs=0.02)
    assert np.hypot(down, across)[near].max() < 1.5
