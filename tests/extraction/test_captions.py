"""Captions that name their pictures: one split of the file's own, the first of each, and what has no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from crossret.extraction import PictureSplit, read_captions_of_pictures
from tests.cli.command import Cli
from tests.extraction.stand_in import Columns


def read(tmp_path: Path, text: str, per_picture: int | None = None, split: str | None = None) -> dict[str, list[str]]:
    (tmp_path / "captions").write_text(text)
    return {
        name: own.captions for name, own in read_captions_of_pictures(tmp_path / "captions", per_picture, split).items()
    }


def test_several_lines_a_picture_as_flickrs(tmp_path: Path) -> None:
    lines = [f"{name}.jpg#{number}\t{name} {number}" for number in range(6) for name in "ba"]
    six = read(tmp_path, "\n".join(lines))
    assert six == {f"{name}.jpg": [f"{name} {number}" for number in range(6)] for name in "ba"}
    assert read(tmp_path, "\n".join(lines), 1) == {"b.jpg": ["b 0"], "a.jpg": ["a 0"]}
    assert read(tmp_path, "\n".join(lines[:-1]), 5) == {name: own[:5] for name, own in six.items()}


def test_a_split_of_the_files_own(tmp_path: Path) -> None:
    names = ("train", "restval", "val", "test")
    images = [{"filename": f"{name}.jpg", "split": name, "sentences": [{"raw": name}]} for name in names]
    text = json.dumps({"images": images})
    for split, taken in (("train", ["train", "restval"]), ("dev", ["val"]), ("val", ["val"]), ("test", ["test"])):
        assert read(tmp_path, text, split=split) == {f"{name}.jpg": [name] for name in taken}
    assert len(read(tmp_path, text)) == 4
    with pytest.raises(ValueError, match="captions: no images of split mine, but of train, restval, val, test"):
        read(tmp_path, text, split="mine")
    assert read(tmp_path, "a.jpg\tx\n", split="mine") == {"a.jpg": ["x"]}


def test_extract_takes_its_split_of_the_files_own(tmp_path: Path, crossret: Cli) -> None:
    """And loads the encoder behind the captions."""
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "x.json").write_text('[{"image": "a.png", "caption": "x", "split": "val"}]')
    command = ["extract", tmp_path, "--encoder", tmp_path / "no encoder", "--output", tmp_path / "data"]
    command += ["--captions", tmp_path / "x.json", "--split"]
    assert crossret.refused(*command, "test") == f"crossret: {tmp_path}/x.json: no images of split test, but of val\n"
    assert "no encoder" in crossret.refused(*command, "dev")


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (".csv", 'image,caption\na.png,"one, two"\na.png,three\n'),
        (".json", '{"a.png": ["one, two", "three"]}'),
        (".token", "a.png#0\tone, two\na.png#1\tthree\n"),
    ],
)
def test_a_split_of_pictures_beside_any_file(ending: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name, width in (("a", 20), ("b", 30)):
        Image.new("RGB", (width, 10)).save(tmp_path / f"dev/{name}.png")
    (tmp_path / "dev/notes.txt").touch()
    (tmp_path / f"dev{ending}").write_text(text)
    with pytest.warns(UserWarning) as told:
        found = PictureSplit(tmp_path, "dev", Columns())
    assert [str(warning.message) for warning in told] == [
        f"{tmp_path}/dev: left out, as {why}: 1" for why in ("they have no captions", "they are no pictures")
    ]
    assert (found.ids, found.captions, found.n_regions) == (["a"], ["one, two", "three"], 2)
    assert found.image_of_caption.tolist() == [0, 0]


def test_what_was_wrong_and_read_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"captions, line 2: lacks the '\|' before its caption"):
        assert read(tmp_path, "a.jpg| 0| x\na.jpg| 1 y z\n") == {"a.jpg": ["x", "y z"]}


@pytest.mark.parametrize(
    ("text", "per_picture", "message"),
    [
        ("a.jpg\tx\nb.jpg\ty\nb.jpg\tz\n", 2, "captions, line 1: a has 1 captions, fewer than 2"),
        ("a.jpg\tx\n", 0, "captions of a picture must be at least 1, not 0"),
        ('{"images": [{"cocoid": 1, "sentences": [{"raw": "x"}]}]}', None, "images[0]: image 1 has no file of its own"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, per_picture: int | None, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        read(tmp_path, text, per_picture)
    assert message in str(raised.value)
