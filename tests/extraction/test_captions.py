"""Captions that name their pictures: both formats, and what is wrong in them by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossret.extraction import read_captions_of_pictures


def read(tmp_path: Path, text: str | bytes, per_picture: int | None = None) -> dict[str, list[str]]:
    file = tmp_path / "captions"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {name: own.captions for name, own in read_captions_of_pictures(file, per_picture).items()}


def test_a_line_a_picture_in_the_files_order(tmp_path: Path) -> None:
    text = "\ufeffb.jpg\tA  red\u00a0bus \r\na.jpg\ttabs\tare white space\n"
    assert read(tmp_path, text) == {"b.jpg": ["A red bus"], "a.jpg": ["tabs are white space"]}


def test_json_lines(tmp_path: Path) -> None:
    lines = [{"image": "a.jpg", "caption": "a\nbus"}, {"image": "#1.jpg", "caption": "ein Bär", "split": "test"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert read(tmp_path, text) == {"a.jpg": ["a bus"], "#1.jpg": ["ein Bär"]}


def test_several_lines_a_picture_as_flickrs(tmp_path: Path) -> None:
    lines = [f"{name}.jpg#{number}\t{name} {number}" for number in range(5) for name in "ba"]
    five = read(tmp_path, "\n".join(lines))
    assert five == {f"{name}.jpg": [f"{name} {number}" for number in range(5)] for name in "ba"}
    assert read(tmp_path, "\n".join(lines), 1) == {"b.jpg": ["b 0"], "a.jpg": ["a 0"]}
    six = "\n".join([*lines, "b.jpg#5\tone more"])
    assert read(tmp_path, six, 5) == five


@pytest.mark.parametrize(
    ("text", "per_picture", "message"),
    [
        ("a.jpg a bus\n", None, "captions, line 1: 'a.jpg a bus' is not a picture's file, a tab and its caption"),
        ("a.jpg\tx\n\n", None, "captions, line 2: '' is not a picture's file"),
        ("", None, "captions, line 1: '' is not a picture's file"),
        ("a.jpg\tx\nb.jpg\t \n", None, "captions, line 2: the caption is empty"),
        ('{"image": "a.jpg"}\n', None, 'captions, line 1: must have "image" and "caption", two texts'),
        ('{"image": 3, "caption": "x"}\n', None, 'captions, line 1: must have "image" and "caption", two texts'),
        ("{a.jpg\tx\n", None, "captions, line 1: not JSON"),
        (b"a.jpg\tx\nb.jpg\t\xff\n", None, "captions, line 2: not UTF-8"),
        ("a.jpg\tx\na.jpg\ty\n", None, "captions, line 1: a.jpg has 2 captions, where a picture has 1 or 5"),
        ("a.jpg\tx\n" + "b.jpg\ty\n" * 5, None, "captions, line 2: b.jpg has 5 captions, but the first picture has 1"),
        ("a.jpg\tx\n", 5, "captions, line 1: a.jpg has 1 captions, fewer than 5"),
        ("a.jpg\tx\n", 3, "captions of a picture must be 1 or 5, not 3"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, per_picture: int | None, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        read(tmp_path, text, per_picture)
    assert message in str(raised.value)
