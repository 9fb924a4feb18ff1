"""Whatever reads a file refuses what is none at once, and what would take all memory by its size."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from crossret.compat.checkpoints import read_vocabulary as read_published
from crossret.compat.features import BottomUpFiles
from crossret.data import Vocabulary
from crossret.data.precomputed import read_captions
from crossret.data.scenes.grounding import read_grounding
from crossret.data.word_vectors import read_word_vectors
from crossret.files.arrays import map_array
from crossret.files.json import read_json, read_json_lines
from crossret.files.pickled import read_saved
from crossret.files.tensors import read_tensors
from crossret.files.toml import read_toml

WHOLE: dict[str, Callable[[Path], Any]] = {
    "captions": read_captions,
    "grounding": read_grounding,
    "JSON": read_json,
    "JSON lines": read_json_lines,
    "vocabulary": Vocabulary.load,
    "settings": read_toml,
    "published vocabulary": read_published,
    "ids": lambda path: BottomUpFiles([path], path),
}
READERS: dict[str, Callable[[Path], Any]] = WHOLE | {
    "array": partial(map_array, ndim=3, dtypes=["<f4"]),
    "tensors": partial(read_tensors, expected={}),
    "checkpoint": read_saved,
    "word vectors": partial(read_word_vectors, words=["a"]),
}


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


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_is_no_file_is_told(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for its other end
    with pytest.raises(ValueError, match=r"pipe: not a regular file, but a pipe or .*: save what comes out of it"):
        read(tmp_path / "pipe")
    with pytest.raises(ValueError, match=f"^{tmp_path}: not a regular file, but a directory$"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent: no such file"):
        read(tmp_path / "absent")


@pytest.mark.parametrize("read", WHOLE.values(), ids=WHOLE)
def test_what_would_take_all_memory_is_refused_by_its_size(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 2**40)  # which takes no room on the disk
    with pytest.raises(ValueError, match=r"/file: has 1,099,511,627,776 bytes, and at most [0-9,]+ are read of such"):
        read(tmp_path / "file")
