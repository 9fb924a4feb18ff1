"""Corpora in shards: their list, what it promises and what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossret.files.shards import StoredShards


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Shards of 2 and 3 items."""
    for name, items in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "features.npy", np.full((items, 2, 4), items, np.float32))
    shards = [{"path": "a", "items": 2}, {"path": "b", "items": 3}]
    (tmp_path / "shards.json").write_text(json.dumps({"dim": 4, "shards": shards}))
    return tmp_path


def test_items_are_found_in_their_shards(corpus: Path) -> None:
    shards = StoredShards.of_directory(corpus)
    assert (len(shards), shards.dim, shards.path) == (5, 4, corpus / "shards.json")
    assert [shards.find(item) for item in range(5)] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    items, place = shards.stored(3)
    assert items.path == corpus / "b" / "features.npy" and place == 1


def test_shards_and_features_in_one_directory(corpus: Path) -> None:
    (corpus / "values.npy").touch()
    with pytest.raises(ValueError, match=r"holds both shards\.json and values\.npy"):
        StoredShards.of_directory(corpus)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([], "not a JSON object, but list"),
        ({"dim": 4, "shards": []}, "a list that is not empty"),
        ({"dim": 4, "shards": [{"path": "a"}]}, "shard 0: expected an object of path and items"),
        ({"dim": 4, "shards": [{"path": "../a", "items": 1}]}, "shard 0: expected a path within this directory"),
        ({"dim": 4, "shards": [{"path": "/a", "items": 1}]}, "shard 0: expected a path within this directory"),
        ({"dim": 4, "shards": [{"path": "a", "items": 2}, {"path": "./a", "items": 2}]}, "lists a twice"),
    ],
)
def test_malformed_lists(corpus: Path, contents: Any, message: str) -> None:
    (corpus / "shards.json").write_text(json.dumps(contents))
    with pytest.raises(ValueError, match=message) as error:
        StoredShards.of_directory(corpus)
    assert str(error.value).startswith(str(corpus / "shards.json"))


@pytest.mark.parametrize(("shape", "found"), [((2, 2, 4), "2 items of 4"), ((3, 2, 5), "3 items of 5")])
def test_a_shard_that_is_not_what_the_list_says(corpus: Path, shape: tuple[int, ...], found: str) -> None:
    np.save(corpus / "b" / "features.npy", np.ones(shape, np.float32))
    shards = StoredShards.of_directory(corpus)
    shards.open(0)
    with pytest.raises(ValueError, match=rf"b/features\.npy: {found} dimensions, but .*shards\.json says 3 of 4"):
        shards.open(1)
