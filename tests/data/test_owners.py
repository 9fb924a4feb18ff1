"""The image of each caption: as many for each, or as a file tells; what is written is read, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret.data import PrecomputedDataset
from crossret.data.owners import read_owners, write_owners
from crossret.data.precomputed import owners_path


def write(directory: Path, counts: list[int], split: str = "train") -> Path:
    rng = np.random.default_rng(0)
    np.save(directory / f"{split}_ims.npy", rng.standard_normal((len(counts), 3, 2), np.float32))
    (directory / f"{split}_caps.txt").write_text("".join(f"caption {number}\n" for number in range(sum(counts))))
    write_owners(owners_path(directory, split), counts)
    return directory


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, counts: list[int]) -> None:
    directory = write(tmp_path_factory.mktemp("data"), counts)
    data = PrecomputedDataset(directory, "train")
    owners = [image for image, count in enumerate(counts) for _ in range(count)]
    assert owners_path(directory, "train").exists() is (len(set(counts)) > 1)
    assert data.image_of_caption.tolist() == owners
    assert data.image_of_caption.dtype == np.int64
    assert (data.n_images, data.n_captions) == (len(counts), sum(counts))
    assert data.feature_rows.tolist() == list(range(len(counts)))
    first = data.first(1)
    assert (first.n_captions, first.captions) == (counts[0], data.captions[: counts[0]])
    assert first.image_of_caption.tolist() == [0] * counts[0]


def test_names_of_images_are_a_line_an_image_or_a_caption(tmp_path: Path) -> None:
    write(tmp_path, [2, 1, 3])
    for lines in (["a", "b", "c"], ["a", "a", "b", "c", "c", "c"]):
        (tmp_path / "train_ids.txt").write_text("".join(f"{line}\n" for line in lines))
        data = PrecomputedDataset(tmp_path, "train")
        assert data.ids == ["a", "b", "c"]
    assert data.first(2).ids == ["a", "b"]


def test_rows_that_repeat_are_images_where_a_file_tells_their_captions(tmp_path: Path) -> None:
    """Without the file, five equal rows of five captions would be one image."""
    np.save(tmp_path / "dev_ims.npy", np.zeros((5, 3, 2), np.float32))
    (tmp_path / "dev_caps.txt").write_text("caption\n" * 5)
    assert PrecomputedDataset(tmp_path, "dev").n_images == 1
    np.save(tmp_path / "dev_image_of_caption.npy", np.arange(5))
    assert PrecomputedDataset(tmp_path, "dev").n_images == 5


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0, 0, 1], ": of 3 captions, but there are 4"),
        ([0, 0, 2, 2], "must have one, but caption 2 is of image 2"),
        ([0, 1, 0, 2], "but caption 2 is of image 0"),
        ([1, 1, 1, 2], "but caption 0 is of image 1"),
        ([-1, 0, 1, 2], "but caption 0 is of image -1"),
        ([0, 0, 1, 1], "but caption 3 is of image 1"),
        ([0, 1, 2, 3], "in the order of their images, 0 to 2"),
        ([0.0, 1.0, 2.0, 2.0], ": expected dtype"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, owners: list[int], message: str) -> None:
    path = tmp_path / "train_image_of_caption.npy"
    np.save(path, np.array(owners))
    with pytest.raises(ValueError) as error:
        read_owners(path, 3, 4)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
