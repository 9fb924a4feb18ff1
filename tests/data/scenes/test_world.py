"""Sampled scenes: where objects may lie, what they may be, and how near duplicates differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    IMAGE_SIZE,
    SHAPES,
    SIZES,
    SPLITS,
    TEXTURES,
    change_one_attribute,
    sample_scene,
)

scenes = st.builds(sample_scene, st.integers(0, 2**40), st.sampled_from(SPLITS), st.integers(0, 10_000))


@settings(max_examples=100)
@given(scenes)
def test_objects_are_told_apart_and_apart(scene):
    assert scene.background in BACKGROUNDS
    assert 2 <= len(scene.objects) <= 6
    for thing in scene.objects:
        assert thing.shape in SHAPES
        assert thing.colour in COLOURS
        assert thing.size in SIZES
        assert thing.texture in TEXTURES
        assert thing.radius < min(thing.x, thing.y)
        assert max(thing.x, thing.y) < IMAGE_SIZE - thing.radius
    for one, other in combinations(scene.objects, 2):
        assert one.attributes != other.attributes
        assert np.hypot(one.x - other.x, one.y - other.y) > one.radius + other.radius


@settings(max_examples=50)
@given(scenes, st.integers(0, 2**32))
def test_a_changed_scene_differs_in_one_attribute_of_one_object(scene, seed):
    changed = change_one_attribute(scene, np.random.default_rng(seed))
    assert replace(changed, objects=scene.objects) == scene
    differing = [(one, other) for one, other in zip(scene.objects, changed.objects, strict=True) if one != other]
    ((one, other),) = differing
    assert sum(a != b for a, b in zip(one.attributes, other.attributes, strict=True)) == 1
    assert (one.x, one.y, one.tilt) == (other.x, other.y, other.tilt)
    assert other.radius <= one.radius
    assert len({thing.attributes for thing in changed.objects}) == len(changed.objects)


def test_scenes_depend_on_seed_split_and_index_alone():
    identities = [(seed, split, index) for seed in (0, 1) for split in SPLITS for index in (0, 2, 4)]
    sampled = {identity: sample_scene(*identity) for identity in identities}
    assert all(sample_scene(*identity) == sampled[identity] for identity in reversed(identities))
    assert len({scene.objects for scene in sampled.values()}) == len(identities)
