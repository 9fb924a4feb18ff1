"""Cutting a corpus: shards hold all of it, in order, and are searched as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.search import sharding
from crossret.search.sharding import cut_corpus


def write_corpus(directory: Path, lengths: np.ndarray, layout: str) -> None:
    rng = np.random.default_rng(0)
    items = rng.standard_normal((len(lengths), lengths.max(), 4)).astype(np.float16)
    if layout == "packed":
        np.save(directory / "values.npy", np.concatenate([item[:n] for item, n in zip(items, lengths, strict=True)]))
        np.save(directory / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))
        return
    np.save(directory / "features.npy", items)
    if layout == "lengths":
        np.save(directory / "lengths.npy", lengths)


def rows(items: StoredItems) -> list[np.ndarray]:
    if items.offsets is not None:
        return [items.values[first:last] for first, last in zip(items.offsets[:-1], items.offsets[1:], strict=True)]
    lengths = items.lengths if items.lengths is not None else [items.values.shape[1]] * len(items)
    return [item[:length] for item, length in zip(items.values, lengths, strict=True)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.data())
@pytest.mark.parametrize("layout", ["padded", "lengths", "packed"])
def test_shards_hold_everything_in_order(
    tmp_path_factory: pytest.TempPathFactory, layout: str, lengths: list[int], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "whole").mkdir()
    write_corpus(directory / "whole", np.array(lengths), layout)
    count = data.draw(st.integers(1, len(lengths)))
    sizes = cut_corpus(directory / "whole", directory / "cut", shards=count)
    shards = StoredShards.of_directory(directory / "cut")
    opened = [shards.open(number) for number in range(count)]
    assert [len(items) for items in opened] == sizes and all(items.values.dtype == np.float16 for items in opened)
    expected = rows(StoredItems.of_directory(directory / "whole"))
    for found, wanted in zip([row for items in opened for row in rows(items)], expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    stored = [items.values.size // 4 for items in opened]
    if sum(stored) >= count * max(lengths):
        assert max(stored) <= sum(stored) / count + 2 * max(lengths), "about as many rows in each"


def test_it_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    write_corpus(tmp_path / "whole", np.array([3, 1, 2, 4]), "packed")
    for shards, message in ((5, "4 items are too few for 5 shards"), (0, "shards must be at least 1, not 0")):
        with pytest.raises(ValueError, match=message):
            cut_corpus(tmp_path / "whole", tmp_path / "cut", shards=shards)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharding, "write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        cut_corpus(tmp_path / "whole", tmp_path / "cut", shards=2)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
