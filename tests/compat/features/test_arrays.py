"""Features in .npy and HDF5: what comes out of them, and that what does not fit is told with its place."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.format import open_memmap

from crossret.compat.features import ArrayFile, Hdf5File, arrays, hdf5, import_features

RNG = np.random.default_rng(0)
CORNERS = np.array([0, 0, 1, 1])
FEATURES, BOXES = RNG.standard_normal((5, 3, 4)), RNG.random((5, 3, 4)) + CORNERS


@pytest.mark.parametrize(
    ("dtype", "order"), [("<f2", "C"), (">f2", "F"), ("<f4", "C"), (">f4", "F"), ("<f8", "F"), (">f8", "C")]
)
def test_an_array_is_written_in_float32_and_float16_as_it_is(
    tmp_path: Path, dtype: str, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 2 * FEATURES[0].size * int(dtype[2]))
    expected = FEATURES.astype(dtype)
    np.save(tmp_path / "x.npy", np.asarray(expected, order=order))
    np.save(tmp_path / "boxes.npy", np.asarray(BOXES.astype(">f8"), order=order))
    source = ArrayFile(tmp_path / "x.npy", tmp_path / "boxes.npy")
    assert all(row.features.flags.c_contiguous for row in source)  # and so of a block, not across the file
    steps: list[tuple[int, int]] = []
    import_features(source, tmp_path / "data", "test", regions=2, progress=lambda *step: steps.append(step))
    written = np.load(tmp_path / "data" / "test_ims.npy")
    assert written.dtype == (np.float16 if dtype[1:] == "f2" else np.float32)
    np.testing.assert_array_equal(written, expected[:, :2].astype(np.float32))
    np.testing.assert_array_equal(np.load(tmp_path / "data" / "test_boxes.npy"), BOXES[:, :2].astype(np.float32))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["test_boxes.npy", "test_ims.npy"]
    assert steps == [(row, 5) for row in range(1, 6)]


def test_fortran_order_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", 2**22)
    stored = open_memmap(tmp_path / "x.npy", "w+", "<f4", (2**11, 32, 256), fortran_order=True)
    for column in range(256):
        stored[:, :, column] = column
    del stored
    tracemalloc.start()
    import_features(ArrayFile(tmp_path / "x.npy"), tmp_path / "data", "test")
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert allocated < 2**24
    written = np.load(tmp_path / "data" / "test_ims.npy", mmap_mode="r")
    assert written.shape == (2**11, 32, 256)
    assert all((image == np.arange(256)).all() for image in written[:: 2**8])


@pytest.mark.parametrize(
    ("features", "boxes", "message"),
    [
        (FEATURES, BOXES[:4], r"boxes.npy: shape \(4, 3, 4\) is not \(5, 3, 4\)"),
        (np.where(np.arange(5)[:, None, None] == 3, np.nan, FEATURES), None, r"x.npy, row 3: features of region 0"),
        (np.where(FEATURES == FEATURES[4, 2, 1], 1e300, FEATURES), None, r"x.npy, row 4: features of region 2"),
        (FEATURES, np.where(BOXES == BOXES[4, 0, 3], 1e39, BOXES), r"boxes.npy, row 4: the box of region 0 is not"),
        (FEATURES, BOXES - [0, 0, 2, 0], r"boxes.npy, row 0: the box of region 0 is .*: not x0, y0, x1, y1 .*, width"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, features: Any, boxes: Any, message: str) -> None:
    np.save(tmp_path / "x.npy", features)
    if boxes is not None:
        np.save(tmp_path / "boxes.npy", boxes)
    with pytest.raises(ValueError, match=message):
        source = ArrayFile(tmp_path / "x.npy", None if boxes is None else tmp_path / "boxes.npy")
        import_features(source, tmp_path / "data", "test")
    assert not list(tmp_path.glob("data/*"))


def test_hdf5_without_h5py_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"x.h5: HDF5 needs h5py: pip install 'crossret\[hdf5\]'"):
        Hdf5File(tmp_path / "x.h5")


@pytest.fixture
def h5py() -> Any:
    return pytest.importorskip("h5py")


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 3, 4), "compression": "gzip"}], ids=str)
def test_data_sets_are_written_in_blocks(
    tmp_path: Path, h5py: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "_BLOCK_BYTES", 2 * 3 * 4 * 8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("image_features", data=FEATURES, **options)
        file.create_dataset("group/boxes", data=BOXES.astype(np.float32))
    import_features(Hdf5File(tmp_path / "x.h5", "image_features", "group/boxes"), tmp_path / "data", "test")
    np.testing.assert_array_equal(np.load(tmp_path / "data" / "test_ims.npy"), FEATURES.astype(np.float32))
    np.testing.assert_array_equal(np.load(tmp_path / "data" / "test_boxes.npy"), BOXES.astype(np.float32))


def test_data_sets_that_do_not_fit_are_named(tmp_path: Path, h5py: Any) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["features"] = FEATURES
    spoilt = FEATURES.copy()
    spoilt[3, 1, 0] = np.nan
    with h5py.File(path, "w") as file:
        file["nan"], file["flat"], file[b"\xff"] = spoilt, FEATURES[0], FEATURES  # no UTF-8
        file["elsewhere"] = h5py.ExternalLink(tmp_path / "other.h5", "features")
        layout = h5py.VirtualLayout(shape=FEATURES.shape, dtype="f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "features", shape=FEATURES.shape)
        file.create_virtual_dataset("composed", layout)
        file.create_dataset("raw", (5, 3, 4), "f8", external=[(str(tmp_path / "raw.bin"), 0, 480)])
        file.create_dataset("vast", (2**20, 2**10, 2**10), "f4", chunks=(2**10, 2**8, 2**10))
    for name, message in (
        ("elsewhere", "no data set 'elsewhere' in it, but for links, which are not followed"),
        ("flat", r"data set 'flat' has shape \(3, 4\), expected 3 dimensions"),
        ("composed", "data set 'composed' is stored in other files"),
        ("raw", "data set 'raw' is stored in other files"),
        ("vast", r"data set 'vast' has chunks of shape \(1024, 256, 1024\), too large to read"),
        ("nan", "nan, row 3: features of region 1 are not finite in float32"),
    ):
        with pytest.raises(ValueError, match=rf"^{path}: {message}"):
            import_features(Hdf5File(path, name), tmp_path / "data", "test")
    with pytest.raises(ValueError, match=r"x.h5: flat|data set 'flat'"):
        Hdf5File(path, "nan", "flat")


def test_data_sets_are_whole(tmp_path: Path, h5py: Any) -> None:
    """HDF5 gives zeros for numbers that were never written, of as many images as a few bytes claim."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("claimed", (2**40, 3, 4), "f4")
        file.create_dataset("chunks", (2**40, 3, 4), "f4", chunks=(2, 3, 4))
        file.create_dataset("begun", (5, 3, 4), "f4", chunks=(2, 3, 3))[:4] = FEATURES[:4]
        file.create_dataset("whole", (5, 3, 4), "f4", chunks=(2, 3, 3))[:] = FEATURES
        file.create_dataset("zeros", data=np.zeros((5, 3, 4), np.float32))
    for name, blocks in (("claimed", "0 of its 1"), ("chunks", f"0 of its {2**39}"), ("begun", "4 of its 6")):
        message = rf"^{path}: data set '{name}' is not whole: {blocks} blocks were ever written"
        with pytest.raises(ValueError, match=message):
            Hdf5File(path, name)
    assert import_features(Hdf5File(path, "whole", "/zeros"), tmp_path / "data", "test").images == 5


def test_what_is_no_hdf5_is_told(tmp_path: Path, h5py: Any) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=FEATURES, chunks=(1, 3, 4), compression="gzip", fletcher32=True)
    whole = path.read_bytes()
    for contents in (b"", b"hello" * 100, whole[: len(whole) // 2]):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=r"x.h5: not a readable HDF5 file"):
            Hdf5File(path)
    with pytest.raises(FileNotFoundError):
        Hdf5File(tmp_path / "none.h5")
