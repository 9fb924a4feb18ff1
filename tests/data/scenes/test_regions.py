"""Region boxes: inside the image, round every object, and some on the background."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.data.scenes.regions import grid_boxes, overlap_areas, sample_boxes
from crossret.data.scenes.world import IMAGE_SIZE


def areas(boxes):
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def overlaps(boxes, others):
    shared = overlap_areas(boxes, others)
    return shared / (areas(boxes)[:, None] + areas(others)[None] - shared)


@st.composite
def object_boxes(draw):
    boxes = []
    for _ in range(draw(st.integers(1, 6))):
        width, height = draw(st.integers(16, 70)), draw(st.integers(16, 70))
        x, y = draw(st.integers(0, IMAGE_SIZE - width)), draw(st.integers(0, IMAGE_SIZE - height))
        boxes.append((x, y, x + width, y + height))
    return np.array(boxes, dtype=np.float32)


@settings(max_examples=100)
@given(object_boxes(), st.integers(0, 2**32))
def test_boxes_are_inside_the_image_and_frame_every_object(objects, seed):
    boxes = sample_boxes(objects, np.random.default_rng(seed))
    assert boxes.shape == (12, 4)
    assert boxes.dtype == np.float32
    assert boxes.min() >= 0
    assert boxes.max() <= IMAGE_SIZE
    assert (boxes[:, 2:] - boxes[:, :2]).min() >= 8
    assert (overlaps(boxes, objects).max(axis=0) > 0.5).all()
    np.testing.assert_array_equal(boxes, sample_boxes(objects, np.random.default_rng(seed)))
    assert (boxes != sample_boxes(objects, np.random.default_rng(seed + 1))).any()


def test_the_cells_of_a_grid_are_in_raster_order_and_cover_the_image_once():
    boxes = grid_boxes()
    assert (boxes.shape, boxes.dtype) == ((49, 4), np.float32)
    assert boxes[[0, 1, 7, 48]].tolist() == [[0, 0, 32, 32], [32, 0, 64, 32], [0, 32, 32, 64], [192, 192, 224, 224]]
    np.testing.assert_array_equal(overlap_areas(boxes, boxes), 32**2 * np.eye(49))
