"""Bottom-up attention's TSV: what comes out of it, and that every malformed line is told with file, line and reason."""

from __future__ import annotations

import base64
import errno
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crossret.compat.features import BottomUpFiles, import_features
from crossret.compat.features import bottom_up as module
from crossret.data import PrecomputedDataset


def encoded(array: NDArray[np.float32]) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def regions(seed: int, count: int = 3) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Boxes (count, 4) and features (count, 5)."""
    rng = np.random.default_rng(seed)
    boxes = rng.random((count, 4), np.float32) + np.float32([0, 0, 1, 1])
    return boxes, rng.standard_normal((count, 5)).astype(np.float32)


def fields_of(image_id: int, count: int = 3) -> dict[str, str]:
    boxes, features = regions(image_id, count)
    sizes = {"image_id": str(image_id), "image_w": "640", "image_h": "480", "num_boxes": str(count)}
    return {**sizes, "boxes": encoded(boxes), "features": encoded(features)}


def line(**fields: str) -> str:
    return "\t".join(fields.values()) + "\n"


def write(path: Path, *image_ids: int) -> Path:
    path.write_text("".join(line(**fields_of(image_id)) for image_id in image_ids))
    return path


def check(directory: Path, split: str, *image_ids: int) -> None:
    features, boxes = (np.load(directory / f"{split}_{name}.npy") for name in ("ims", "boxes"))
    assert (directory / f"{split}_ids.txt").read_text().split() == [str(image_id) for image_id in image_ids]
    assert features.dtype == boxes.dtype == np.float32
    for row, image_id in enumerate(image_ids):
        expected = regions(image_id)
        np.testing.assert_array_equal(boxes[row], expected[0])
        np.testing.assert_array_equal(features[row], expected[1])
    assert len(features) == len(boxes) == len(image_ids)


def test_images_come_in_the_files_order(tmp_path: Path) -> None:
    source = BottomUpFiles([write(tmp_path / "a.tsv", 7, 3), write(tmp_path / "b.tsv", 5)])
    steps: list[tuple[int, int]] = []
    done = import_features(source, tmp_path / "data", "train", progress=lambda *step: steps.append(step))
    assert (done.images, done.regions, done.dimensions, done.with_boxes) == (3, 3, 5, True)
    check(tmp_path / "data", "train", 7, 3, 5)
    lines = (tmp_path / "a.tsv").read_bytes() + (tmp_path / "b.tsv").read_bytes()
    sizes = np.cumsum([len(line) for line in lines.splitlines(keepends=True)])
    assert steps == [*((size, 2 * sizes[-1]) for size in sizes), (4, 6), (5, 6), (6, 6)]


def test_ids_choose_and_order_and_repeat_images(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.tsv", 7, 3, 11), write(tmp_path / "b.tsv", 5)]
    with (tmp_path / "a.tsv").open("a") as file:
        file.write("999\tmalformed, and not asked for\n")
    (tmp_path / "ids.txt").write_text("5\n3 \r\n5\n7\n")
    import_features(BottomUpFiles(paths, tmp_path / "ids.txt"), tmp_path / "data", "dev")
    check(tmp_path / "data", "dev", 5, 3, 5, 7)


def test_ids_may_have_folders_before_them(tmp_path: Path) -> None:
    """As those of LAVIS's captions of Flickr30K: flickr30k-images/1000092795."""
    (tmp_path / "ids.txt").write_text("flickr30k-images/3\n")
    (row,) = BottomUpFiles([write(tmp_path / "a.tsv", 7, 3)], tmp_path / "ids.txt")
    assert row.image_id == "flickr30k-images/3"
    np.testing.assert_array_equal(row.features, regions(3)[1])


@pytest.mark.parametrize(("most", "lengths"), [(None, [4, 3, 5]), (4, [4, 3, 4]), (3, [3, 3, 3])])
def test_the_first_regions_are_taken_and_different_numbers_told(
    tmp_path: Path, most: int | None, lengths: list[int]
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(line(**fields_of(1, 4)) + line(**fields_of(2, 3)) + line(**fields_of(3, 5)))
    done = import_features(BottomUpFiles([path]), tmp_path / "data", "train", regions=most)
    assert (done.regions, done.fewest) == (max(lengths), 3)
    assert (tmp_path / "data" / "train_lengths.npy").exists() == (most != 3)
    (tmp_path / "data" / "train_caps.txt").write_text("a dog\n" * 15)
    data = PrecomputedDataset(tmp_path / "data", "train")
    for row, (count, length) in enumerate(zip((4, 3, 5), lengths, strict=True)):
        assert most == 3 or data.lengths[row] == length
        boxes, features = regions(row + 1, count)
        np.testing.assert_array_equal(data.features[row, :length], features[:length])
        np.testing.assert_array_equal(data.boxes[row, :length], boxes[:length])
        assert not data.features[row, length:].any()


def test_bytes_as_python_3_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    written = (
        {name: f"b'{text}'" if len(text) > 4 else text for name, text in fields_of(seed).items()} for seed in (7, 3)
    )
    path.write_text("".join(line(**fields) for fields in written))
    import_features(BottomUpFiles([path]), tmp_path / "data", "train")
    check(tmp_path / "data", "train", 7, 3)


INFINITE = regions(2)[1].copy()
INFINITE[1, 2] = np.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": "ä"}, r"image_id is .* not a name in ASCII"),
        ({"image_w": "x"}, r"image_w is b'x', not a whole number above 0"),
        ({"num_boxes": "9" * 5000}, r"num_boxes is b'9{40}', not a whole number above 0"),
        ({"num_boxes": "6"}, r"boxes has 12 numbers, expected 4 for each of 6 boxes"),
        ({"boxes": "b'AAAA"}, r"boxes is not base64 \("),
        ({"boxes": "b'AAAA'"}, r"boxes has 3 bytes, not as many"),
        ({"features": "AAAA"}, r"features has 3 bytes, not as many"),
        ({"features": encoded(INFINITE)}, r"features of region 1 are not finite in float32"),
        (
            {"features": encoded(np.zeros((3, 4), np.float32))},
            r"4 dimensions, but the first image has 5",
        ),
        ({"more": "x"}, r"7 fields, expected 6: image_id, image_w, image_h, num_boxes, boxes, features"),
        ({"image_id": "1"}, r"image '1' is at .*a.tsv, line 1 already"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(line(**fields_of(1)) + line(**{**fields_of(2), **changes}) + line(**fields_of(3)))
    with pytest.raises(ValueError, match=rf"^{path}, line 2: {message}"):
        import_features(BottomUpFiles([path]), tmp_path / "data", "train")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]


def test_lines_and_ids_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ids = write(tmp_path / "a.tsv", 1, 2), tmp_path / "ids.txt"
    ids.write_text("1\n4\n")
    with pytest.raises(ValueError, match=r"a.tsv: no lines of image 4$"):
        list(BottomUpFiles([path], ids))
    ids.write_text("1\n")
    with pytest.raises(ValueError, match=r"b.tsv, line 1: image '2' is at .*a.tsv, line 2 already"):
        list(BottomUpFiles([path, write(tmp_path / "b.tsv", 2)], ids))
    with pytest.raises(ValueError, match=r"^regions must be at least 1, not 0$"):
        import_features(BottomUpFiles([path]), tmp_path / "data", "train", regions=0)
    monkeypatch.setattr(module, "_LONGEST_LINE", 100)
    with pytest.raises(ValueError, match=r"a.tsv, line 1: longer than the regions of any image"):
        import_features(BottomUpFiles([path]), tmp_path / "data", "train")


def test_a_write_that_fails_at_the_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = os.replace

    def replace(source: str, target: Path) -> None:
        if target.name == "train_ims.npy":
            raise OSError(errno.ENOSPC, "no room", str(source))
        put(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="no room"):
        import_features(BottomUpFiles([write(tmp_path / "a.tsv", 1)]), tmp_path / "data", "train")
    assert not (tmp_path / "data").exists()


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 1)
    for name in ("ims.npy", "boxes.npy", "lengths.npy"):
        (tmp_path / name[:3]).mkdir()
        (tmp_path / name[:3] / f"train_{name}").touch()
        with pytest.raises(FileExistsError, match=f"train_{name}: is there already"):
            import_features(BottomUpFiles([path]), tmp_path / name[:3], "train")
