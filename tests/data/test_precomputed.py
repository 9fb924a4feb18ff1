"""The precomputed-feature format: which row belongs to which caption, and what every malformed file is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from crossret.data import PrecomputedDataset
from crossret.data.batches import read_regions
from crossret.data.perturbing import perturb_data
from crossret.data.precomputed import splits_in


def features_of(rows: int) -> NDArray[np.float32]:
    return np.arange(rows * 3 * 2, dtype=np.float32).reshape(rows, 3, 2)


def write(directory: Path, features: NDArray[np.float32], captions: int, split: str = "train") -> Path:
    np.save(directory / f"{split}_ims.npy", features)
    (directory / f"{split}_caps.txt").write_text("".join(f"caption {number}\n" for number in range(captions)))
    return directory


@pytest.mark.parametrize("times", [1, 5])
def test_one_vector_an_image_is_one_region(tmp_path: Path, times: int) -> None:
    vectors = features_of(4)[:, 0]
    data = PrecomputedDataset(write(tmp_path, np.repeat(vectors, times, axis=0), 20), "train")
    assert (data.n_images, data.n_regions, data.image_dim) == (4, 1, 2)
    np.testing.assert_array_equal(data.features[data.feature_rows], vectors[:, None])


@pytest.mark.parametrize("times", [1, 5])
def test_the_first_images_alone(tmp_path: Path, times: int) -> None:
    data = PrecomputedDataset(write(tmp_path, np.repeat(features_of(4), times, axis=0), 20), "train")
    part = data.first(3)
    assert (part.n_images, part.n_captions, part.captions) == (3, 15, data.captions[:15])
    assert part.image_of_caption.tolist() == [image for image in range(3) for _ in range(5)]
    np.testing.assert_array_equal(part.features[part.feature_rows], features_of(4)[:3])
    assert (data.n_images, data.n_captions, len(data.feature_rows)) == (4, 20, 4)
    assert data.first(4).captions == data.captions
    for images in (0, 5):
        with pytest.raises(ValueError, match=rf"train_ims.npy: has 4 images, of which the first {images} cannot"):
            data.first(images)


def test_float16_stays_on_the_disk(tmp_path: Path) -> None:
    features = np.repeat(features_of(2).astype(np.float16), 5, axis=0)
    features[:5, 1] = np.nan
    data = PrecomputedDataset(write(tmp_path, features, 10), "train")
    assert (data.n_images, data.features.dtype) == (2, np.float16)
    regions = read_regions(data, slice(0, 2)).features
    assert regions.dtype == torch.float32
    np.testing.assert_array_equal(regions.numpy(), features[::5].astype(np.float32))


@pytest.mark.parametrize("shape", [(2, 3, 4), (10, 2, 4), (10, 3, 5)])
def test_boxes_of_other_regions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write(tmp_path, np.repeat(features_of(2), 5, axis=0), 10)
    np.save(tmp_path / "train_boxes.npy", np.zeros((10, 3, 4), np.float32))
    assert PrecomputedDataset(tmp_path, "train").n_images == 2
    np.save(tmp_path / "train_boxes.npy", np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=r"train_boxes\.npy: shape .* is not \(10, 3, 4\)"):
        PrecomputedDataset(tmp_path, "train")


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ([0, 0, np.nan, 1], "is not finite in float32"),
        ([5, 5, 4, 6], "is 5, 5, 4, 6: not x0, y0, x1, y1 with x0 <= x1 and y0 <= y1, perhaps x, y, width, height"),
    ],
)
def test_what_is_no_box_is_named(
    tmp_path: Path, box: list[float], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossret.data.boxes._BLOCK_BYTES", 100)
    write(tmp_path, features_of(4), 20)
    boxes = np.zeros((4, 3, 4), np.float32)
    boxes[2, 1] = boxes[3, 0] = box
    np.save(tmp_path / "train_boxes.npy", boxes)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/train_boxes\.npy, row 2: the box of region 1 {message}"):
        PrecomputedDataset(tmp_path, "train")


@pytest.mark.parametrize("inside", [False, True])
def test_vse_infinity_s_layout(tmp_path: Path, inside: bool) -> None:
    """``precomp/``, and images' files by the numbers in SPLIT_ids.txt; MS-COCO's ids stay (woodfrog/vse_infty)."""
    (tmp_path / "precomp").mkdir()
    write(tmp_path / "precomp", features_of(3), 15, "dev")
    (tmp_path / "precomp/dev_ids.txt").write_text("0\n0\n0\n0\n0\n" + "7\n" * 5 + "391895\n" * 5)
    (tmp_path / "precomp/dev_caption_ids.txt").write_text("".join(f"{number}\n" for number in range(15)))
    directory = tmp_path / "precomp" if inside else tmp_path
    assert splits_in(directory) == ["dev"]
    assert PrecomputedDataset(directory, "dev").ids == ["0", "7", "391895"]
    files = {"0": "1000092795.jpg", "7": "a-ball.jpg", "391895": "val2014/COCO_val2014_000000391895.jpg"}
    (tmp_path / "id_mapping.json").write_text(json.dumps(files))
    data = PrecomputedDataset(directory, "dev")
    assert data.ids == ["1000092795", "a-ball", "391895"]
    assert data.first(2).caption_ids == [str(number) for number in range(10)]
    perturb_data(directory, tmp_path.with_suffix(".new"), split="dev")
    assert PrecomputedDataset(tmp_path.with_suffix(".new"), "dev").ids == data.ids
    (tmp_path / "id_mapping.json").write_text('{"0": "1.jpg"}')
    with pytest.raises(ValueError, match=r"dev_ids.txt, line 6: .*id_mapping.json names no file of image 7"):
        PrecomputedDataset(directory, "dev")
    (tmp_path / "precomp/dev_caption_ids.txt").write_text("1\n2\n")
    (tmp_path / "id_mapping.json").unlink()
    with pytest.raises(ValueError, match=r"dev_caption_ids.txt: names 2 captions, but there are 15"):
        PrecomputedDataset(directory, "dev")


def test_line_ends_the_last_one_and_a_byte_order_mark_are_forgiven(tmp_path: Path) -> None:
    write(tmp_path, features_of(1), 5)
    (tmp_path / "train_caps.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo \nthree\nfour\nf\xc3\xbcnf")
    assert PrecomputedDataset(tmp_path, "train").captions == ["one", "two", "three", "four", "fünf"]


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ([], r"train_ims\.npy: no such file; a data directory holds SPLIT_ims.*import-features.*render-scenes"),
        (["a.JPG", "b.txt"], r"train_ims\.npy: no such file; these are pictures: `crossret extract` makes"),
        (["dev_ims.npy", "a.png", "_ims.npy"], r"train_ims\.npy: no such file; there is dev$"),
        (["train_ims.npy", "dev_ims.npy"], r"train_caps\.txt: no such file; it holds the captions of train_ims\.npy"),
    ],
)
def test_a_missing_file_and_what_makes_it(tmp_path: Path, present: list[str], message: str) -> None:
    for name in present:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}/{message}"):
        PrecomputedDataset(tmp_path, "train")


@pytest.mark.parametrize(("rows", "captions"), [(2, 5), (5, 1), (3, 4)])
def test_rows_that_do_not_fit_the_captions(tmp_path: Path, rows: int, captions: int) -> None:
    write(tmp_path, features_of(rows), captions)
    with pytest.raises(ValueError, match=rf"train_ims.npy: {rows} rows do not fit the {captions} captions"):
        PrecomputedDataset(tmp_path, "train")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", ": no captions"),
        (b"one\ntwo\n\nfour\nfive\n", ", line 3: the caption is empty"),
        (b"one\ntwo\n\xe2\x80\x8b \xef\xbb\xbf\nfour\nfive\n", ", line 3: the caption is empty"),
        (b"one\ntwo\nthr\0ee\nfour\nfive\n", ", line 3: a NUL character"),
        (b"one\n\xff\xfe\nthree\nfour\nfive\n", ", line 2: not UTF-8"),
        (b"one\n" + b"a" * 70_000 + b"\n" + b"a\n" * 3, ", line 2: the caption has 70,000 characters, more than 65,"),
    ],
)
def test_malformed_captions(tmp_path: Path, contents: bytes, message: str) -> None:
    write(tmp_path, features_of(1), 5)
    (tmp_path / "train_caps.txt").write_bytes(contents)
    with pytest.raises(ValueError, match=rf"train_caps\.txt{message}"):
        PrecomputedDataset(tmp_path, "train")


@pytest.mark.parametrize("name", ["ims", "boxes"])
def test_float64_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, features_of(4), 20)
    np.save(tmp_path / f"train_{name}.npy", np.zeros((4, 3, 4)))
    with pytest.raises(ValueError, match=rf"train_{name}\.npy: expected dtype float32.* got '<f8'"):
        PrecomputedDataset(tmp_path, "train")
