"""Features: functions of the pixels in the box, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from crossret.data.scenes.drawing import draw_scene
from crossret.data.scenes.features import region_features
from crossret.data.scenes.regions import sample_boxes
from crossret.data.scenes.world import sample_scene

BOX = np.array([[60.25, 40.5, 130.0, 121.75]], dtype=np.float32)


@pytest.fixture(scope="module")
def pixels():
    return draw_scene(sample_scene(0, "dev", 2)).pixels


def test_pixels_inside_the_box_matter_and_those_outside_do_not(pixels):
    inside, outside = pixels.copy(), pixels.copy()
    inside[70:80, 90:100] = 255 - inside[70:80, 90:100]
    outside[:34], outside[128:], outside[:, :54], outside[:, 136:] = 0, 255, 128, 7
    before = region_features(pixels, BOX)
    assert np.abs(region_features(inside, BOX) - before).max() > 0.01
    np.testing.assert_array_equal(region_features(outside, BOX), before)


def test_each_region_stands_alone_bit_for_bit(pixels):
    # Sums of whole numbers are exact: no matter how many rows a matrix product has, or how its BLAS cuts them up.
    boxes = sample_boxes(draw_scene(sample_scene(0, "dev", 2)).object_boxes, np.random.default_rng(0))
    together = region_features(pixels, boxes)
    for number in range(12):
        np.testing.assert_array_equal(region_features(pixels, boxes[number : number + 1])[0], together[number])
    shuffled = np.random.default_rng(0).permutation(12)
    np.testing.assert_array_equal(region_features(pixels, boxes[shuffled]), together[shuffled])
