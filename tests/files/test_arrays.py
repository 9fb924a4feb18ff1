"""map_array: arrays of numbers are mapped, and everything else is a ValueError that names the file; write_rows."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from crossret.files.arrays import map_array, write_rows

VALUES = np.arange(24, dtype=np.float32).reshape(1, 3, 8)
GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 8), }"


def npy(header: str, *, version: tuple[int, int] = (1, 0), data: bytes = VALUES.tobytes()) -> bytes:
    text = header.encode("latin-1")
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text + data


def shaped(shape: str) -> bytes:
    return npy(GOOD.replace("(1, 3, 8)", shape))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        *(
            (contents, "not a readable .npy file")
            for contents in (
                b"",
                b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
                npy(GOOD.replace(")", "")),
                npy("(" * 9000),
                npy("__import__('os')"),
                npy(GOOD.replace("<f4", "|O")),
                npy(GOOD)[:-1],
                shaped("(-3, -4, 8)"),
                shaped(f"({2**63 - 1}, {2**63 - 1}, {2**63})"),
            )
        ),
        (shaped("(1, 24)"), "expected 3 dimensions"),
        (npy(GOOD.replace("False", "True")), "Fortran order"),
        (npy(GOOD.replace("<f4", ">f4")), "expected dtype float32 in little-endian order, got '>f4'"),
        (npy(GOOD.replace("'<f4'", "[('x', '<f4')]")), "expected dtype float32"),
        (npy(GOOD) + b"\0", "truncated or padded"),
    ],
)
def test_garbage_is_one_value_error_that_names_the_file(tmp_path: Path, contents: bytes, message: str) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(contents)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=rf"^{path}: .*{message}"):
            map_array(path, ndim=3, dtypes=["<f4"])


@pytest.mark.parametrize("dtype", ["<f4", "<i8"])
@pytest.mark.parametrize("row", [(), (3,), (2, 3)])
@pytest.mark.parametrize("blocks", [[1], [4, 1, 7], [1] * 1000])
def test_rows_are_written_in_order(tmp_path: Path, blocks: list[int], row: tuple[int, ...], dtype: str) -> None:
    rows = np.random.default_rng(0).integers(0, 2**40, (sum(blocks), *row)).astype(dtype)
    path = tmp_path / "rows.npy"
    with write_rows(path, row, dtype) as write:
        for block in np.split(rows, np.cumsum(blocks)[:-1]):
            write(block[::-1][::-1])
            assert not path.exists()
    for read in (np.load(path, allow_pickle=False), map_array(path, ndim=rows.ndim, dtypes=[dtype])):
        assert read.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(read, rows)


def test_rows_that_do_not_go_together_are_not_written(tmp_path: Path) -> None:
    message = r"rows\.npy: rows of shape \(4,\) after others of \(3,\)"
    with pytest.raises(ValueError, match=message), write_rows(tmp_path / "rows.npy", (3,), "<f4") as write:
        write(np.ones((2, 3), np.float32))
        write(np.ones((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"rows\.npy: no rows"), write_rows(tmp_path / "rows.npy", (3,), "<f4"):
        pass
    with pytest.raises(TypeError, match="same_kind"), write_rows(tmp_path / "rows.npy", (3,), "<i8") as write:
        write(np.ones((2, 3), np.float32))
    assert list(tmp_path.iterdir()) == []
