"""Whatever reads a file refuses what is none at once: a pipe without a writer would be waited for, for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from crossret.compat.checkpoints import read_vocabulary as read_published
from crossret.compat.features import BottomUpFiles
from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.precomputed import read_captions
from crossret.data.scenes.grounding import read_grounding
from crossret.data.word_vectors import read_word_vectors
from crossret.files.arrays import map_array
from crossret.files.json import read_json, read_json_lines, read_json_object
from crossret.files.regular import check_regular, open_regular, read_regular
from crossret.files.tensors import read_header, read_tensors
from crossret.files.toml import read_toml
from crossret.training.callbacks import JsonLines

READERS: dict[str, Callable[[Path], Any]] = {
    "check_regular": check_regular,
    "open_regular": open_regular,
    "read_regular": read_regular,
    "array": partial(map_array, ndim=3, dtypes=["<f4"]),
    "captions": read_captions,
    "grounding": read_grounding,
    "JSON": read_json,
    "JSON object": read_json_object,
    "JSON lines": read_json_lines,
    "tensors": partial(read_tensors, expected={}),
    "tensors' header": read_header,
    "vocabulary": Vocabulary.load,
    "word vectors": partial(read_word_vectors, words=["a"]),
}
# Of a size, those that are read whole.
WHOLE: dict[str, Callable[[Path], Any]] = {
    name: read for name, read in READERS.items() if name.startswith(("read", "captions", "grounding", "JSON", "vocab"))
} | {
    "settings": read_toml,
    "published vocabulary": read_published,
    "ids": lambda path: BottomUpFiles([path], path),
    "log": lambda path: JsonLines(path, 1),
}
EVERY_READER = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A reader that waits fails instead."""

    def give_up(*_: object) -> NoReturn:
        raise AssertionError("still waiting after 10 seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@EVERY_READER
def test_a_pipe_is_refused(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe: not a regular file, but a pipe: save what comes out of it as a file"):
        read(tmp_path / "pipe")


@EVERY_READER
def test_a_missing_file_is_named(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(FileNotFoundError, match="absent: no such file"):
        read(tmp_path / "absent")


@pytest.mark.parametrize(("path", "kind"), [("/", "a directory"), ("/dev/zero", "a device")])
@EVERY_READER
def test_what_else_is_no_file_is_told(read: Callable[[Path], Any], path: str, kind: str) -> None:
    with pytest.raises(ValueError, match=f"^{path}: not a regular file, but {kind}$"):
        read(Path(path))


@pytest.mark.parametrize("read", WHOLE.values(), ids=WHOLE)
def test_what_would_take_all_memory_is_refused_by_its_size(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 2**40)  # which takes no room on the disk
    with pytest.raises(ValueError, match=r"/file: has 1,099,511,627,776 bytes, and at most [0-9,]+ are read of such"):
        read(tmp_path / "file")


def test_a_file_without_a_size_is_read_as_far_as_others(tmp_path: Path) -> None:
    system = Path("/proc/self/cmdline")
    assert system.stat().st_size == 0
    contents = read_regular(system)
    assert contents == system.read_bytes()
    assert read_regular(system, len(contents)) == contents
    with pytest.raises(ValueError, match=f"cmdline: has {len(contents)} bytes, and at most {len(contents) - 1} are"):
        read_regular(system, len(contents) - 1)


@pytest.mark.parametrize("name", ["test_ims.npy", "test_caps.txt"])
def test_a_pipe_in_a_data_set_is_refused(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "test_ims.npy", np.zeros((1, 2, 3), np.float32))
    (tmp_path / "test_caps.txt").write_text("a dog\n")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name}: not a regular file, but a pipe"):
        PrecomputedDataset(tmp_path, "test")


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0\xff")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link") == b"\0\xff"
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"\0\xff"
