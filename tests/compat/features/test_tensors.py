"""Features as tensors in one file: what comes out of it, and that nothing in it is run or larger than the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from crossret.compat.features import TensorFile, import_features
from tests.files.test_pickled import Runs

FEATURES = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
BOXES = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(1)) + torch.tensor([0, 0, 1, 1])
IDS = ["7", "3", "12", "9"]


def save(contents: Any, path: Path) -> Path:
    (save_file if path.suffix == ".safetensors" else torch.save)(contents, path)
    return path


def check(data: Path, order: list[int], boxes: bool, ids: bool = False) -> None:
    np.testing.assert_array_equal(np.load(data / "test_ims.npy"), FEATURES[order])
    assert (data / "test_boxes.npy").exists() == boxes
    if boxes:
        np.testing.assert_array_equal(np.load(data / "test_boxes.npy"), BOXES[order])
    assert (data / "test_ids.txt").exists() == ids
    if ids:
        assert (data / "test_ids.txt").read_text().split() == [IDS[row] for row in order]


OF_ALL = {
    "tensor": (FEATURES, False),
    "list": (list(FEATURES), False),
    "features": ({"features": FEATURES}, False),
    "names": ({"feats": FEATURES, "bbox": BOXES, "num_boxes": torch.full((4,), 3), "epoch": 3}, True),
    "lists": ({"x": list(FEATURES), "boxes": list(BOXES)}, True),
    "parameter": ({"mine": torch.nn.Parameter(FEATURES), "boxes": BOXES.double()}, True),
    "turned": (FEATURES.permute(2, 0, 1).contiguous().permute(1, 2, 0), False),
}
OF_EACH = {
    "tensors": (dict(zip(IDS, FEATURES, strict=True)), False),
    "integers": ({int(name): image for name, image in zip(IDS, FEATURES, strict=True)}, False),
    "names": (
        {
            name: {"feat": image, "bbox": boxes, "size": (640, 480)}
            for name, image, boxes in zip(IDS, FEATURES, BOXES, strict=True)
        },
        True,
    ),
}


@pytest.mark.parametrize("kind", OF_ALL)
def test_tensors_of_all_images(tmp_path: Path, kind: str) -> None:
    contents, boxes = OF_ALL[kind]
    import_features(TensorFile(save(contents, tmp_path / "x.pt")), tmp_path / "data", "test")
    check(tmp_path / "data", [0, 1, 2, 3], boxes)


@pytest.mark.parametrize("kind", OF_EACH)
def test_tensors_by_the_images_ids(tmp_path: Path, kind: str) -> None:
    contents, boxes = OF_EACH[kind]
    path = save(contents, tmp_path / "x.pth")
    import_features(TensorFile(path), tmp_path / "data", "test")
    check(tmp_path / "data", [0, 1, 2, 3], boxes, ids=True)
    (tmp_path / "ids.txt").write_text("12\n7\n12\n")
    import_features(TensorFile(path, tmp_path / "ids.txt"), tmp_path / "chosen", "test")
    check(tmp_path / "chosen", [2, 0, 2], boxes, ids=True)
    (tmp_path / "ids.txt").write_text("7\n5\n")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/ids.txt, line 2: no image of the name '5' in {path}$"):
        TensorFile(path, tmp_path / "ids.txt")


def test_safetensors(tmp_path: Path) -> None:
    path = save({"features": FEATURES, "boxes": BOXES, "other": FEATURES + 1}, tmp_path / "x.safetensors")
    import_features(TensorFile(path), tmp_path / "data", "test")
    check(tmp_path / "data", [0, 1, 2, 3], boxes=True)
    import_features(TensorFile(path, dataset="other", box_dataset="boxes"), tmp_path / "other", "test")
    np.testing.assert_array_equal(np.load(tmp_path / "other" / "test_ims.npy"), FEATURES + 1)
    by_id = save(dict(zip(IDS, FEATURES.clone(), strict=True)), tmp_path / "ids.safetensors")
    import_features(TensorFile(by_id), tmp_path / "ids", "test")
    order = [IDS.index(name) for name in (tmp_path / "ids" / "test_ids.txt").read_text().split()]
    assert sorted(order) == [0, 1, 2, 3]
    check(tmp_path / "ids", order, boxes=False, ids=True)


@pytest.mark.parametrize(
    ("dtype", "written"),
    [(torch.float16, "<f2"), (torch.bfloat16, "<f4"), (torch.float64, "<f4")],
)
def test_dtypes(tmp_path: Path, dtype: torch.dtype, written: str) -> None:
    import_features(TensorFile(save(FEATURES.to(dtype), tmp_path / "x.pt")), tmp_path / "data", "test")
    found = np.load(tmp_path / "data" / "test_ims.npy")
    assert found.dtype.str == written
    np.testing.assert_array_equal(found, FEATURES.to(dtype).float())


def test_ids_name_the_images_of_a_tensor(tmp_path: Path) -> None:
    path, ids = save(FEATURES, tmp_path / "x.pt"), tmp_path / "ids.txt"
    ids.write_text("\n".join(IDS))
    import_features(TensorFile(path, ids), tmp_path / "data", "test")
    check(tmp_path / "data", [0, 1, 2, 3], boxes=False, ids=True)
    ids.write_text("7\n")
    with pytest.raises(ValueError, match=rf"^{ids}: 1 ids, but {path} has 4 images without ids$"):
        TensorFile(path, ids)


@pytest.mark.parametrize("listed", [["b", "a"], torch.tensor([12, 11])])
def test_ids_beside_features_name_the_images(tmp_path: Path, listed: Any) -> None:
    names = [str(name) for name in (listed.tolist() if isinstance(listed, torch.Tensor) else listed)]
    features = torch.arange(24.0).reshape(2, 3, 4)
    path = save({"image_ids": listed, "features": features}, tmp_path / "x.pt")
    import_features(TensorFile(path), tmp_path, "train")
    assert (tmp_path / "train_ids.txt").read_text().split() == names
    (tmp_path / "ids.txt").write_text("\n".join(names[::-1]))
    import_features(TensorFile(path, ids=tmp_path / "ids.txt"), tmp_path, "test")
    np.testing.assert_array_equal(np.load(tmp_path / "test_ims.npy"), features.flip(0).numpy())
    save({"image_ids": ["a", "a"], "features": features}, path)
    with pytest.raises(ValueError, match=r"x.pt: its ids are not 2 different names"):
        TensorFile(path)


def test_images_may_have_different_numbers_of_regions(tmp_path: Path) -> None:
    images = [FEATURES[row, : row + 1] if row < 3 else FEATURES[row] for row in range(4)]
    done = import_features(TensorFile(save(images, tmp_path / "x.pt")), tmp_path / "data", "test")
    assert (done.regions, done.fewest) == (3, 1)
    np.testing.assert_array_equal(np.load(tmp_path / "data" / "test_lengths.npy"), [1, 2, 3, 3])


SPOILT = FEATURES.clone()
SPOILT[2, 1, 0] = torch.nan


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (SPOILT, r", row 2: features: features of region 1 are not finite in float32$"),
        (dict(zip(IDS, SPOILT, strict=True)), r", image 12: features of region 1 are not finite in float32$"),
        ({"7": FEATURES[0], "3": "a dog"}, r", image 3: no array of a known name in it .*; there is none of numbers$"),
        ({"7": FEATURES[0], "": FEATURES[1]}, r": no image of the name '' in "),
        ({"features": FEATURES, "boxes": BOXES[:3]}, r": boxes: not a tensor or a list of an item an image$"),
        ({"features": "a dog"}, r": features: not a tensor or a list of an item an image$"),
        (FEATURES.to(torch.complex64), r", row 0: no array 'features' in it; there is none of numbers$"),
        (FEATURES.to_sparse(), r", row 0: no array 'features' in it; there is none of numbers$"),
        (FEATURES.to("meta"), r", row 0: no array 'features' in it; there is none of numbers$"),
        (torch.ones(1).expand(2**40, 36, 2048), r": its tensors are larger than the file$"),
        ([torch.ones(64, 64)] * 1000, r": its tensors are larger than the file$"),
        ({"7": FEATURES[0], "3": Runs(eval, "1")}, r": refused, as it asks for \S+; nothing of it has been run$"),
        ({"7": FEATURES[0].numpy()}, r": refused, as it asks for \S+; nothing of it has been run$"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, contents: Any, message: str) -> None:
    path = save(contents, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=rf"^{path}{message}"):
        import_features(TensorFile(path), tmp_path / "data", "test")
    assert not list(tmp_path.glob("data/*"))
