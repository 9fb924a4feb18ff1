"""The driver, with an encoder that needs no library: what is written, in which order, and what a kill leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crossret.data import PrecomputedDataset
from crossret.data.pictures import find_pictures
from crossret.extraction import Options, extract_pictures
from crossret.files.features import StoredItems
from tests.extraction.stand_in import Columns, extract
from tests.processes import started

NAMES = ["b", "a", "d", "c", "f", "e", "g"]
WIDTHS = dict(zip(NAMES, [20, 35, 40, 10, 20, 25, 70], strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of several widths, and captions in another order than their names."""
    directory = tmp_path / "photographs"
    directory.mkdir()
    random = np.random.default_rng(0)
    for name, width in WIDTHS.items():
        Image.fromarray(random.integers(0, 255, (8, width, 3), dtype=np.uint8)).save(directory / f"{name}.png")
    lines = [f"{name}.png\tthing {name} of width {width}\n" for name, width in WIDTHS.items()]
    (directory / "captions.tsv").write_text("".join(lines))
    (directory / "notes.txt").write_text("no picture")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_split_is_written_in_the_order_of_the_captions(folder: Path, tmp_path: Path) -> None:
    done = extract(folder, tmp_path / "data")
    assert (done.pictures, done.fewest, done.most, done.dimensions) == (7, 1, 7, 4)
    assert (done.captions, done.left_out, done.without_captions) == (7, (), 0)
    assert done.others == ("captions.tsv", "notes.txt")
    data = PrecomputedDataset(tmp_path / "data", "test")
    assert data.ids == NAMES
    assert data.lengths is not None and data.lengths.tolist() == [width // 10 for width in WIDTHS.values()]
    assert data.captions == [f"thing {name} of width {width}" for name, width in WIDTHS.items()]
    assert data.features.shape == (7, 7, 4) and data.features.dtype == np.float32
    assert data.boxes is not None and data.boxes[1, 2].tolist() == [20, 0, 30, 8]
    pixels = np.asarray(Image.open(folder / "a.png"), np.float32)
    np.testing.assert_allclose(data.features[1, 2], [*pixels[:, 20:30].mean((0, 1)), 2], rtol=1e-5)
    assert not data.features[1, 3:].any()
    words = StoredItems.of_directory(tmp_path / "data" / "test_words")
    assert words.offsets is not None and words.offsets.tolist() == list(range(0, 36, 5))
    assert words.values[:2].tolist() == [[5, ord("t"), 0, 1], [1, ord("b"), 1, 1]]
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(".")]


def test_without_captions_pictures_are_sorted_by_name(folder: Path, tmp_path: Path) -> None:
    (folder / "g.png").unlink()
    for name in "abcdef":
        Image.new("RGB", (20, 5)).save(folder / f"{name}.png")
    calls: list[tuple[int, int]] = []

    @contextmanager
    def progress(what: str) -> Iterator[object]:
        assert what == "pictures"
        yield lambda done, total: calls.append((done, total))

    options = Options(batch_size=4, half=True)
    done = extract_pictures(folder, Columns(), tmp_path / "data", "train", options=options, progress=progress)
    assert (done.pictures, done.fewest, done.most, done.captions) == (6, 2, 2, 0)
    assert calls == [(0, 6), (4, 6), (6, 6)]
    assert (tmp_path / "data" / "train_ids.txt").read_text().split() == list("abcdef")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "train_boxes.npy",
        "train_ids.txt",
        "train_ims.npy",
    ]
    features = np.load(tmp_path / "data" / "train_ims.npy")
    assert features.shape == (6, 2, 4) and features.dtype == np.float16


def test_pictures_are_those_of_ids_that_are_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test_ids.txt").write_text("g\nb\n")
    (tmp_path / "data" / "test_caps.txt").write_text("two words\none\n")
    with pytest.raises(ValueError, match=r"test_ids\.txt: is of all pictures, of which none can then be left out"):
        extract_pictures(folder, Columns(), tmp_path / "data", "test", options=Options(unreadable="skip"))
    done = extract_pictures(folder, Columns(), tmp_path / "data", "test", texts=Columns())
    assert (done.pictures, done.captions, done.words) == (2, 2, 3)
    data = PrecomputedDataset(tmp_path / "data", "test")
    assert data.lengths is not None
    assert (data.ids, data.lengths.tolist()) == (["g", "b"], [7, 2])


@pytest.mark.parametrize("killed", [(1, None), (None, 1)], ids=str)
def test_a_kill_and_a_resume_write_the_same_bytes(
    folder: Path, tmp_path: Path, killed: tuple[int | None, int | None]
) -> None:
    extract(folder, tmp_path / "whole")
    output = tmp_path / "data"
    code = (
        "from pathlib import Path; from tests.extraction.stand_in import extract; "
        f"extract(Path({str(folder)!r}), Path({str(output)!r}), {killed!r})"
    )
    with started_python(code) as process:
        assert process.wait() == -9
    assert not (output / "test_ims.npy").exists()
    # What a process may have written of a batch that it did not end.
    part = output / ".crossret-extract-test" / "pictures"
    for file, text in (("features.npy", b"half a batch"), ("journal.jsonl", b'{"done": 9')):
        with open(part / file, "ab") as opened:
            opened.write(text)
    resumed = extract(folder, output)
    assert resumed.pictures == 7
    assert contents(output) == contents(tmp_path / "whole")


def started_python(code: str) -> AbstractContextManager[subprocess.Popen[Any]]:
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return started([sys.executable, "-c", code], env=environment)


class Stopped(Exception):
    """Ends an extraction as Ctrl-C does."""


def interrupt(folder: Path, output: Path, **options: object) -> None:
    class Interrupted(Columns):
        def _count(self) -> None:
            if self.left == 0:
                raise Stopped
            self.left = 0

    with pytest.raises(Stopped):
        extract_pictures(folder, Interrupted(), output, "test", options=Options(batch_size=3, **options))


def test_an_extraction_with_other_settings_is_not_gone_on_with(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "data"
    interrupt(folder, output)
    for options, name in (({"batch_size": 2}, "batch size"), ({"half": True}, "dtype"), ({"amp": True}, "precision")):
        how = Options(**{"batch_size": 3, **options})
        with pytest.raises(ValueError, match=f"data: an extraction with another {name} was interrupted here: repeat"):
            extract_pictures(folder, Columns(), output, "test", options=how)
    other = Columns()
    other.module.bias.data += 1
    with pytest.raises(ValueError, match="an extraction with another encoder was interrupted here"):
        extract_pictures(folder, other, output, "test", options=Options(batch_size=3))
    Image.new("RGB", (20, 5)).save(folder / "h.png")
    with pytest.raises(ValueError, match="an extraction with another list of pictures was interrupted here"):
        extract_pictures(folder, Columns(), output, "test", options=Options(batch_size=3))
    (folder / "h.png").unlink()
    assert extract_pictures(folder, Columns(), output, "test", options=Options(batch_size=3)).pictures == 7


@pytest.mark.parametrize(
    "line",
    [
        '{"done": 3}',
        '{"done": 3, "lengths": [0, 1], "left_out": []}',
        '{"done": "3", "lengths": [], "left_out": []}',
        "[]",
    ],
)
def test_a_damaged_journal_is_named(folder: Path, tmp_path: Path, line: str) -> None:
    interrupt(folder, tmp_path / "data")
    part = tmp_path / "data" / ".crossret-extract-test" / "pictures"
    (part / "journal.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"journal\.jsonl, line 1: "):
        extract_pictures(folder, Columns(), tmp_path / "data", "test", options=Options(batch_size=3))
    (part / "journal.jsonl").write_text(json.dumps({"done": 3, "lengths": [9, 9, 9], "left_out": []}) + "\n")
    with pytest.raises(ValueError, match=r"features\.npy: has fewer rows than .*journal\.jsonl says; remove "):
        extract_pictures(folder, Columns(), tmp_path / "data", "test", options=Options(batch_size=3))


def test_unreadable_pictures_are_refused_or_left_out_with_their_captions(folder: Path, tmp_path: Path) -> None:
    for name in "dc":
        (folder / f"{name}.png").write_bytes((folder / f"{name}.png").read_bytes()[:-40])
    with pytest.raises(
        ValueError, match=r"d\.png: not a readable image .*; --unreadable skip leaves such pictures out"
    ):
        extract(folder, tmp_path / "data")
    with pytest.warns(UserWarning, match=r"left out: .*[cd]\.png: not a readable image"):
        done = extract(folder, tmp_path / "data", unreadable="skip")  # goes on where the other one ended
    assert done.left_out == ("d.png", "c.png")
    data = PrecomputedDataset(tmp_path / "data", "test")
    assert data.ids == ["b", "a", "f", "e", "g"]
    assert data.captions == [f"thing {name} of width {WIDTHS[name]}" for name in data.ids]


def test_pictures_in_folders_and_with_white_space_in_their_names(folder: Path, tmp_path: Path) -> None:
    names = ["by the sea/a kite 12.png", "by the sea/b.png", "b.png"]
    (folder / "by the sea").mkdir()
    (folder / "a.png").rename(folder / names[0])
    shutil.copy(folder / "c.png", folder / names[1])
    (folder / ".thumbnails").mkdir()
    shutil.copy(folder / "c.png", folder / ".thumbnails")
    (folder / "captions.tsv").write_text("".join(f"{name}#0\tof {name}\n" for name in names))
    done = extract(folder, tmp_path / "data")
    data = PrecomputedDataset(tmp_path / "data", "test")
    assert (done.without_captions, data.captions) == (5, [f"of {name}" for name in names])
    assert data.ids == ["by the sea/a kite 12", "by the sea/b", "b"]
    assert find_pictures(folder, data.ids) == [folder / name for name in names]
    assert find_pictures(folder, ["a kite 12", "12"]) == [folder / names[0]] * 2
    with pytest.raises(ValueError, match="photographs: no pictures of image a"):
        find_pictures(folder, ["a"])
    extract_pictures(folder, Columns(), tmp_path / "all", "test")
    every = ["b", "by the sea/a kite 12", "by the sea/b", *"cdefg"]
    assert (tmp_path / "all" / "test_ids.txt").read_text().splitlines() == every


def test_files_with_other_folders_before_them(folder: Path, tmp_path: Path) -> None:
    (folder / "val").mkdir()
    (folder / "a.png").rename(folder / "val/a.png")
    (folder / "captions.tsv").write_text("2014/c.png\tone\na.png\ttwo\nb.png\tthree\n")
    assert extract(folder, tmp_path / "data").pictures == 3
    assert PrecomputedDataset(tmp_path / "data", "test").ids == ["c", "val/a", "b"]
    shutil.copy(folder / "b.png", folder / "val/b.png")
    for file, message in (
        ("2014/val/b.png", r"captions\.tsv, line 1: there is no picture '2014/val/b\.png'"),
        ("other/a.png", r"captions\.tsv, line 1: there is no picture 'other/a\.png'"),
        ("c.png\tx\n2014/c.png", r"captions\.tsv, line 2: '2014/c\.png' is the picture 'c\.png', as is 'c\.png'"),
    ):
        (folder / "captions.tsv").write_text(f"{file}\tx\n")
        with pytest.raises(ValueError, match=message):
            extract(folder, tmp_path / "none")


def test_a_batch_of_which_nothing_can_be_read(folder: Path, tmp_path: Path) -> None:
    for name in "bad":
        (folder / f"{name}.png").write_text("no picture")
    with pytest.warns(UserWarning, match="left out"):
        assert extract(folder, tmp_path / "data", unreadable="skip").pictures == 4
    for name in NAMES:
        (folder / f"{name}.png").write_text("no picture")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="photographs: none of its 7 pictures can be read"):
        extract(folder, tmp_path / "none", unreadable="skip")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("files", "captions", "message"),
    [
        ({}, "b.png\tx\nz.png\ty\n", r"captions\.tsv, line 2: there is no picture 'z\.png' in .*photographs"),
        ({}, "b.png\tx\nnotes.txt\ty\n", r"captions\.tsv, line 2: 'notes\.txt' is no picture in .*photographs"),
        ({"a .png": (20, 5)}, None, "no white space at an end: rename it"),
        ({"a.jpg": (20, 5)}, None, "has the same id as a.jpg, a: rename one"),
        ({"a.png": (5, 5)}, None, r"a\.png: columns cannot take it \(it is too narrow\)"),
        ({"a.png": None}, None, r"a\.png: not a readable image"),
    ],
)
def test_what_is_wrong_is_named_and_leaves_nothing(
    folder: Path, tmp_path: Path, files: dict[str, tuple[int, int] | None], captions: str | None, message: str
) -> None:
    for name, size in files.items():
        if size is None:
            (folder / name).write_text("no picture")
        else:
            Image.new("RGB", size).save(folder / name)
    if captions is not None:
        (folder / "captions.tsv").write_text(captions)
    with pytest.raises(ValueError, match=message):
        if captions is None:
            extract_pictures(folder, Columns(), tmp_path / "data", "test")
        else:
            extract(folder, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_what_is_there_must_fit(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no pictures in it"):
        extract_pictures(tmp_path / "empty", Columns(), data, "test")
    with pytest.raises(ValueError, match=r"an encoder of texts needs captions: a file of them, or .*test_caps\.txt"):
        extract_pictures(folder, Columns(), data, "test", texts=Columns())
    assert not data.exists()
    data.mkdir()
    (data / "test_caps.txt").write_text("x\ny\n")
    with pytest.raises(ValueError, match=r"test_caps\.txt: 2 captions of 7 pictures: there must be as many of each"):
        extract_pictures(folder, Columns(), data, "test", texts=Columns())
    (data / "test_boxes.npy").touch()
    with pytest.raises(FileExistsError, match=r"test_boxes\.npy: is there already"):
        extract_pictures(folder, Columns(), data, "test")


def test_features_that_are_not_finite_are_named(folder: Path, tmp_path: Path) -> None:
    class Large(Columns):
        def encode(self, prepared: object) -> object:
            tokens = super().encode(prepared)
            tokens.values[3] = 1e5  # a.png, the first, has three rows
            return tokens

    options = Options(half=True)
    with pytest.raises(ValueError, match=r"b\.png: features are not finite in float16; --float32 has room"):
        extract_pictures(folder, Large(), tmp_path / "data", "test", options=options)
