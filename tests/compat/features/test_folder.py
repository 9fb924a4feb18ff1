"""Features in folders, one file an image: what comes out of them, and that every file that does not fit is named."""

from __future__ import annotations

import io
import os
import resource
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from crossret.compat.features import Folder, import_features
from crossret.compat.features import folder as module
from crossret.data import PrecomputedDataset

Array = NDArray[Any]


def regions(seed: int, count: int = 3) -> tuple[Array, Array]:
    """Features (count, 5) and boxes (count, 4)."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 5), np.float32), rng.random((count, 4), np.float32) + np.float32([0, 0, 1, 1])


def folder(path: Path, write: Callable[[Path, int], None], *names: str) -> Path:
    for seed, name in enumerate(names):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        write(path / name, seed)
    return path


def bottom_up(path: Path, seed: int) -> None:
    """As bottom-up-attention.pytorch writes an image, with what it says of it as a pickle."""
    features, boxes = regions(seed, 3 + seed)
    info = np.array({"objects": [1, 2]}, dtype=object)
    np.savez_compressed(path, x=features, bbox=boxes, num_bbox=3 + seed, image_w=640, image_h=480, info=info)


def check(data: Path, split: str, ids: list[str], seeds: list[int], boxes: bool = True) -> None:
    """Images of 3, 4, 5, … regions by their seeds."""
    (data / f"{split}_caps.txt").write_text("a dog\n" * 5 * len(ids))
    found = PrecomputedDataset(data, split)
    assert found.ids == ids
    assert (found.boxes is not None) == boxes
    for row, seed in enumerate(seeds):
        length = found.n_regions if found.lengths is None else found.lengths[row]
        assert length == 3 + seed
        for of_split, expected in zip((found.features, found.boxes), regions(seed, 3 + seed), strict=True):
            if of_split is not None:
                np.testing.assert_array_equal(of_split[row, :length], expected)
                assert not of_split[row, length:].any()


def test_files_of_varying_regions_come_by_name(tmp_path: Path) -> None:
    source = Folder(folder(tmp_path / "x", bottom_up, "b.npz", "a.jpg.npz", "inside/c.npz", ".d.npz", ".e/f.npz"))
    steps: list[tuple[int, int]] = []
    done = import_features(source, tmp_path / "data", "test", progress=lambda *step: steps.append(step))
    assert (done.images, done.regions, done.fewest, done.dimensions, done.with_boxes) == (3, 5, 3, 5, True)
    check(tmp_path / "data", "test", ["a", "b", "inside/c"], [1, 0, 2])
    assert steps == [(done, 6) for done in range(1, 7)]  # headers, then features


def test_ids_choose_and_order_and_repeat_files(tmp_path: Path) -> None:
    """An id is the file's whole name, or the number that it ends with, as Karpathy's are of MS-COCO."""
    names = "train2014/COCO_train2014_000000000009.npz", "val2014/COCO_val2014_000000391895.jpg.npz", "kite.npz"
    path = folder(tmp_path / "x", bottom_up, *names)
    (tmp_path / "ids.txt").write_text("391895\nkite\n9\n391895\n")
    import_features(Folder(path, tmp_path / "ids.txt"), tmp_path / "data", "dev")
    check(tmp_path / "data", "dev", ["391895", "kite", "9", "391895"], [1, 2, 0, 1])
    (tmp_path / "ids.txt").write_text("kite\n12\n")
    with pytest.raises(ValueError, match=rf"^{path}: no files of image 12$"):
        Folder(path, tmp_path / "ids.txt")


def test_captioning_codes_folders(tmp_path: Path) -> None:
    """Features as `feat` in .npz, boxes in .npy beside them; of the whole image one vector."""
    names = ["9", "30", "7"]
    att = folder(tmp_path / "cocobu_att", lambda path, seed: np.savez(path, feat=regions(seed, 3 + seed)[0]), *names)
    box = folder(tmp_path / "cocobu_box", lambda path, seed: np.save(path, regions(seed, 3 + seed)[1]), *names)
    fc = folder(tmp_path / "cocobu_fc", lambda path, seed: np.save(path, regions(seed, 1)[0][0]), *names)
    import_features(Folder(att, boxes=box), tmp_path / "data", "train")
    check(tmp_path / "data", "train", ["30", "7", "9"], [1, 2, 0])
    import_features(Folder(att), tmp_path / "plain", "train")
    check(tmp_path / "plain", "train", ["30", "7", "9"], [1, 2, 0], boxes=False)
    done = import_features(Folder(fc), tmp_path / "vector", "train")
    assert (done.regions, done.fewest, done.with_boxes) == (1, 1, False)
    np.testing.assert_array_equal(np.load(tmp_path / "vector" / "train_ims.npy")[1], regions(2, 1)[0])
    (box / "7.npy").unlink()
    with pytest.raises(ValueError, match=rf"^{box}: no files of image 7$"):
        Folder(att, boxes=box)


def turned(path: Path, seed: int) -> None:
    """As OpenVQA has them."""
    features, boxes = regions(seed, 3 + seed)
    np.savez(path, x=features.T, bbox=boxes)


def padded(path: Path, seed: int) -> None:
    features, boxes = (np.pad(array, [(0, 4), (0, 0)]) for array in regions(seed, 3 + seed))
    np.savez(path, features=features, boxes=boxes, num_boxes=3 + seed)


def unknown(path: Path, seed: int) -> None:
    features, boxes = regions(seed, 3 + seed)
    np.savez(path, mine=features, bbox=boxes, classes=np.arange(3 + seed), image_w=640)


def strange(path: Path, seed: int) -> None:
    features, boxes = regions(seed, 3 + seed)
    np.savez(path, mine=np.asfortranarray(features.astype(">f8")), bbox=boxes.astype(">f4"))


def tensors(path: Path, seed: int) -> None:
    features, boxes = map(torch.from_numpy, regions(seed, 3 + seed))
    torch.save({"image_id": seed, "features": features, "boxes": boxes, "objects": None}, path)


def safe(path: Path, seed: int) -> None:
    features, boxes = map(torch.from_numpy, regions(seed, 3 + seed))
    save_file({"feat": features, "box": boxes, "classes": torch.arange(3)}, path)


@pytest.mark.parametrize(
    ("write", "ending"),
    [
        (turned, ".npz"),
        (padded, ".npz"),
        (unknown, ".npz"),
        (strange, ".npz"),
        (tensors, ".pth"),
        (safe, ".safetensors"),
    ],
)
def test_arrays_are_found(tmp_path: Path, write: Callable[[Path, int], None], ending: str) -> None:
    import_features(Folder(folder(tmp_path / "x", write, f"1{ending}", f"2{ending}")), tmp_path / "data", "test")
    check(tmp_path / "data", "test", ["1", "2"], [0, 1])


@pytest.mark.parametrize(("dtype", "order"), [("<f2", "C"), (">f4", "F")])
def test_plain_arrays_of_any_layout(tmp_path: Path, dtype: str, order: Any) -> None:
    expected = regions(0)[0].astype(dtype)
    path = folder(tmp_path / "x", lambda path, _: np.save(path, np.asarray(expected, order=order)), "a.npy")
    import_features(Folder(path), tmp_path / "data", "test")
    written = np.load(tmp_path / "data" / "test_ims.npy")
    assert written.dtype == (np.float16 if dtype[1:] == "f2" else np.float32)
    np.testing.assert_array_equal(written[0], expected.astype(np.float32))


def test_names_are_given(tmp_path: Path) -> None:
    def write(path: Path, seed: int) -> None:
        features, boxes = regions(seed, 3 + seed)
        np.savez(path, x=features + 1, mine=features, bbox=boxes + 1, places=boxes)

    path = folder(tmp_path / "x", write, "1.npz", "2.npz")
    import_features(Folder(path, dataset="mine", box_dataset="places"), tmp_path / "data", "test")
    check(tmp_path / "data", "test", ["1", "2"], [0, 1])
    with pytest.raises(ValueError, match=r"1.npz: no array 'yours' in it; there is bbox, mine, places, x$"):
        list(Folder(path, dataset="yours"))
    with pytest.raises(ValueError, match=r"1.npz: no array 'yours' in it"):
        list(Folder(path, box_dataset="yours"))


def test_a_map_is_its_places(tmp_path: Path) -> None:
    grid = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    path = folder(tmp_path / "x", lambda path, _: np.savez(path, feat=grid), "1.npz")
    import_features(Folder(path), tmp_path / "data", "test")
    np.testing.assert_array_equal(np.load(tmp_path / "data" / "test_ims.npy"), grid.reshape(1, 6, 4))


FEATURES, BOXES = regions(1)
SPOILT = FEATURES.copy()
SPOILT[1, 2] = np.inf


def deflated(claimed: int, given: int) -> bytes:
    """A .npz whose array has another number of values than it claims."""
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        header = {"descr": "<f4", "fortran_order": False, "shape": (claimed, 5)}
        np.lib.format.write_array_header_1_0(member, header)
        member.write(bytes(given * 20))
    return contents.getvalue()


def zipped(contents: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("x.npy", contents)
    return file.getvalue()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"x": SPOILT}, r": x: features of region 1 are not finite in float32$"),
        ({"x": FEATURES[:, :4]}, r": x: 4 dimensions, but the first image has 5$"),
        ({"x": FEATURES[:0]}, r": x: shape \(0, 5\) is empty, or larger than any image's$"),
        ({"x": FEATURES.astype(object)}, r": x: holds Python objects, which are not read, expected float16"),
        ({"x": FEATURES.astype(int)}, r": x: holds int64, expected float16, float32 or float64$"),
        ({"x": np.float32(1)}, r": x: shape \(\) is not \(regions, dimensions\)$"),
        ({"x": np.ones((5, 2, 2), np.float32)}, r": x: shape \(5, 2, 2\) is not \(regions, dimensions\)$"),
        ({"x": FEATURES, "bbox": BOXES[:2]}, r": bbox: shape \(2, 4\) is not \(3, 4\), four numbers for every region$"),
        ({"x": FEATURES, "bbox": BOXES}, r": x: has boxes, unlike the first image$"),
        ({"x": FEATURES, "num_bbox": 4}, r": num_bbox is 4, expected 1 to 3$"),
        ({"a": FEATURES, "b": FEATURES}, r": no array of a known name in it \(features, .*; there is a, b$"),
        ({"bbox": BOXES}, r": no array of a known name in it .*; there is bbox$"),
        ({}, r": no array of a known name in it .*; there is none of numbers$"),
        (b"hello", r": damaged \(File is not a zip file\)$"),
        (deflated(2**40, 1), r": x: shape \(1099511627776, 5\) is empty, or larger than any image's$"),
        (deflated(2**16, 3), r": x: damaged \(not the 1310720 bytes of shape \(65536, 5\)\)$"),
        (deflated(3, 2**22), r": x: damaged \(not the 60 bytes of shape \(3, 5\)\)$"),
        (zipped(b"hello"), r": x: damaged \(.*magic"),
        (
            zipped(b"\x93NUMPY\x02\0" + b"\xff" * 4 + bytes(2**20), zipfile.ZIP_DEFLATED),
            r": x: damaged \(of another ver",
        ),
        (zipped(bytes(2**20), zipfile.ZIP_LZMA), r": x: damaged \(neither stored nor deflated\)$"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, contents: Any, message: str) -> None:
    (tmp_path / "x").mkdir()
    np.savez(tmp_path / "x" / "1.npz", x=FEATURES)
    path = tmp_path / "x" / "2.npz"
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        np.savez(path, **contents)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"^{path}{message}"):
        import_features(Folder(tmp_path / "x"), tmp_path / "data", "test")
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert allocated < 2**23
    assert not list(tmp_path.glob("data/*"))


def test_float16_is_not_what_float32_becomes(tmp_path: Path) -> None:
    dtypes = [np.float32, np.float16]

    def write(path: Path, seed: int) -> None:
        np.savez(path, x=FEATURES.astype(dtypes[seed]))

    import_features(Folder(folder(tmp_path / "x", write, "1.npz", "2.npz")), tmp_path / "data", "test")
    written = np.load(tmp_path / "data" / "test_ims.npy")
    np.testing.assert_array_equal(written, [FEATURES, FEATURES.astype(np.float16).astype(np.float32)])
    path = folder(tmp_path / "y", write, "2.npz", "1.npz")
    with pytest.raises(ValueError, match=rf"^{path}/2.npz: x: float32, but the first image is in float16$"):
        import_features(Folder(path), tmp_path / "none", "test")


def test_arrays_of_python_objects_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "x", lambda path, _: np.save(path, FEATURES.astype(object)), "1.npy")
    with pytest.raises(ValueError, match=rf"^{path}/1.npy: not a readable .npy file, .*Python objects in dtype"):
        list(Folder(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_that_repeats_itself_is_not_written_out(tmp_path: Path, dtype: torch.dtype) -> None:
    (tmp_path / "x").mkdir()
    torch.save(torch.ones(1, dtype=dtype).expand(2**20, 2**20), tmp_path / "x" / "1.pt")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/x/1.pt: no array of a known name in it .* none of numbers$"):
        list(Folder(tmp_path / "x"))


def test_a_members_checksum_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "x" / "1.npz"
    folder(tmp_path / "x", lambda path, _: np.savez(path, x=FEATURES), path.name)
    contents = path.read_bytes()
    place = contents.index(FEATURES.tobytes())
    path.write_bytes(contents[: place + 9] + bytes([contents[place + 9] ^ 1]) + contents[place + 10 :])
    with pytest.raises(ValueError, match=rf"^{path}: x: damaged \(Bad CRC-32"):
        list(Folder(tmp_path / "x"))


def test_folders_that_do_not_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "x", bottom_up, "1.npz", "2.npz")
    (path / "11.npy").touch()
    with pytest.raises(ValueError, match=rf"^{path}/11.npy: not a .npz file as 1.npz, and a folder holds one kind$"):
        Folder(path)
    (path / "11.npy").rename(path / "0.md")
    (path / "info.txt").touch()
    with pytest.warns(UserWarning, match=rf"^{path}: left out, as they are no features: 2 \(0.md, info.txt\)$"):
        assert Folder(path).ids == ["1", "2"]
    for other in ("0.md", "info.txt"):
        (path / other).unlink()
    (path / " 3.npz").touch()
    with pytest.raises(ValueError, match=rf"^{path}/ 3.npz: its name is none of a picture"):
        Folder(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=rf"^{tmp_path}/empty: no files of features in it: .tsv, "):
        Folder(tmp_path / "empty")
    (tmp_path / "empty" / "1.tsv").touch()
    with pytest.raises(ValueError, match=r"1.tsv: a .tsv file, which is not one image's$"):
        list(Folder(tmp_path / "empty"))
    (path / " 3.npz").unlink()
    monkeypatch.setattr(module, "LARGEST", 100)
    with pytest.raises(ValueError, match=rf"^{path}/1.npz: has more than 100 bytes, which no image's features have$"):
        list(Folder(path))


def test_no_file_stays_open(tmp_path: Path) -> None:
    """A folder has more files than a process may open."""
    (tmp_path / "x").mkdir()
    features = np.arange(80 * 2 * 3, dtype=np.float32).reshape(80, 2, 3)
    for number, image in enumerate(features):
        np.savez(tmp_path / "x" / f"{number:04}.npz", x=image)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
    try:
        assert import_features(Folder(tmp_path / "x"), tmp_path / "data", "test").images == 80
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    np.testing.assert_array_equal(np.load(tmp_path / "data" / "test_ims.npy"), features)
