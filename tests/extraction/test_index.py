"""Indexes of pictures: what is found is what was put in, whatever was added, changed, removed and interrupted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import crossret as library
from crossret.data import Vocabulary
from crossret.extraction import load_picture_encoder
from crossret.extraction.extracting import Options
from crossret.models import Scan, ScanConfig, Vse, VseConfig, save_model
from crossret.picture_index import updating
from crossret.picture_index.updating import Indexed, update_index
from tests.cli.command import Cli
from tests.explain.test_page import data_of
from tests.extraction.stand_in import Columns

WORDS = Vocabulary(["red", "kite", "beach"])
QUERIES = ["red kite", "beach"]
OTHERS = ("notes.txt",)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "_SHARD", 3)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Eight pictures, of other widths each, one of them in a folder of its own and with white space in its name."""
    folder = tmp_path / "album"
    (folder / "a b").mkdir(parents=True)
    for number in range(8):
        draw(folder / (f"a b/the {number}.png" if number == 5 else f"{number}.png"), number)
    (folder / "notes.txt").write_text("no picture")
    return folder


def draw(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 20 + 10 * (seed % 4), 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def model_of(kind: str = "scan", seed: int = 0) -> Scan | Vse:
    torch.manual_seed(seed)
    config = {"image_dim": 4, "vocabulary_size": len(WORDS), "embed_dim": 8, "word_dim": 4}
    return Scan(ScanConfig(**config)) if kind == "scan" else Vse(VseConfig(**config))


def update(index: Path, folder: Path, kind: str = "scan", seed: int = 0, **options: object) -> Indexed:
    how = Options(batch_size=2, **options)  # type: ignore[arg-type]
    return update_index(index, folder, Columns(), model_of(kind, seed), WORDS, options=how)


def expected(folder: Path, kind: str = "scan") -> dict[str, Tensor]:
    """The scores of every picture, encoded alone and anew."""
    model = model_of(kind).eval()
    retriever = library.Retriever(model, WORDS)
    scores = {}
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as picture:
            tokens = Columns().encode_images([picture.convert("RGB")])
        scores[str(path)] = retriever.similarity(tokens.values[None], QUERIES)[0]
    return scores


def assert_finds(index: Path, folder: Path, kind: str = "scan") -> None:
    """Every picture of the folder, and no other, with its own score."""
    opened, wanted = library.load_index(index), expected(folder, kind)
    assert sorted(map(str, opened.pictures)) == sorted(wanted)
    found = opened.search(QUERIES, k=100)
    for query in range(len(QUERIES)):
        names = [str(opened.pictures[int(item)]) for item in found.indices[query]]
        truth = torch.stack([wanted[name][query] for name in names])
        torch.testing.assert_close(found.scores[query], truth, rtol=1e-5, atol=1e-5)
        assert len(set(names)) == len(wanted)


@pytest.mark.parametrize("kind", ["scan", "vse"])
def test_pictures_are_added_changed_and_removed(
    album: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    assert update(index, album, kind) == Indexed(8, 8, 0, 0, 0, (), OTHERS)
    assert_finds(index, album, kind)
    shards = (index / "images" / "shards.json").read_bytes()
    assert update(index, album, kind) == Indexed(8, 0, 0, 8, 0, (), OTHERS)
    assert (index / "images" / "shards.json").read_bytes() == shards

    draw(album / "8.png", 8)
    draw(album / "1.png", 11)  # wider than it was
    for name in ("2.png", "3.png", "a b/the 5.png"):  # the last of a shard, and the first
        (album / name).unlink()
    kept, encoded = model_of(kind), []
    encode = kept.encode_images
    monkeypatch.setattr(kept, "encode_images", lambda *batch: encoded.append(len(batch[0])) or encode(*batch))
    done = update_index(index, album, Columns(), kept, WORDS, options=Options(batch_size=2))
    assert done == Indexed(6, 1, 1, 4, 3, (), OTHERS)
    assert sum(encoded) == 2
    assert_finds(index, album, kind)
    listed = json.loads((index / "images" / "shards.json").read_text())["shards"]
    assert {path.name for path in (index / "images").iterdir() if path.is_dir()} == {one["path"] for one in listed}


def test_several_folders(album: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    draw(other / "1.png", 21)
    index = tmp_path / "index"
    update(index, album)
    assert update(index, other) == Indexed(9, 1, 0, 0, 0, (), ())
    (other / "1.png").rename(other / "2.png")
    assert update(index, other) == Indexed(9, 1, 0, 0, 1, (), ())
    assert len(library.load_index(index)) == 9


class Interrupted(Columns):
    """Ends in the middle of the work, after so many batches."""

    def _count(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        super()._count()


def test_an_interrupted_call_goes_on(album: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    for batches in (0, 3):  # before the first shard is whole, and in the second
        with pytest.raises(KeyboardInterrupt):
            update_index(index, album, Interrupted(batches), model_of(), WORDS, options=Options(batch_size=2))
    assert len(library.load_index(index)) == 3  # whole at any time
    assert update(index, album) == Indexed(8, 5, 0, 3, 0, (), OTHERS)
    assert_finds(index, album)


def test_unreadable_pictures(album: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    for name in ("1.png", "2.png"):
        (album / name).write_text("no picture")
    with pytest.raises(ValueError, match=r"1\.png: not a readable image"):
        update(index, album)
    with pytest.warns(UserWarning, match="left out"):
        done = update(index, album, unreadable="skip")
    assert done == Indexed(6, 6, 0, 0, 0, (str(album / "1.png"), str(album / "2.png")), OTHERS)
    for name in ("1.png", "2.png"):
        (album / name).unlink()
    assert_finds(index, album)


def test_what_is_refused(album: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    update(index, album)
    with pytest.raises(ValueError, match="encoded by scan of other weights"):
        update(index, album, seed=1)
    other = Columns()
    torch.nn.init.zeros_(other.module.weight)
    with pytest.raises(ValueError, match="its pictures were encoded by columns, not by columns as it is now"):
        update_index(index, album, other, model_of(), WORDS)
    with pytest.raises(ValueError, match="no pictures"):
        update(index, index / "model")
    with pytest.raises(FileExistsError, match="not an index of pictures"):
        update(album, album)
    entries = index / "images" / "00000" / "pictures.json"
    contents = json.loads(entries.read_text())
    contents["pictures"][0]["name"] = "../secret.png"
    entries.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match="picture 0: name must be a path within the folder"):
        library.load_index(index)


def test_from_the_command_line(
    album: Path,
    tmp_path: Path,
    folder_of: Callable[[str], Path],
    crossret: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, index, clip = tmp_path / "model", tmp_path / "index", folder_of("clip")
    save_model(Scan(ScanConfig(image_dim=16, vocabulary_size=len(WORDS), embed_dim=8, word_dim=4)), model, WORDS)
    assert "--encoder is needed: there is no index at" in crossret.refused("index", album, "--output", index)
    err = crossret.refused("index", album, "--output", index, "--encoder", clip)
    assert "--model is needed: " in err and "no encoder of late interaction" in err
    monkeypatch.chdir(clip.parent)
    assert crossret("index", album, "--encoder", clip.name, "--model", model, "--output", index) == 0
    without = "left out, as they are no pictures: 1 (notes.txt)\n"
    assert crossret.out == f"{index}: 8 pictures: 8 added\n{without}"
    monkeypatch.chdir(tmp_path)
    draw(album / "8.png", 8)
    assert crossret("index", album, "--output", index) == 0
    assert crossret.out == f"{index}: 9 pictures: 1 added, 8 unchanged\n{without}"

    own = Scan(ScanConfig(image_dim=16, vocabulary_size=len(WORDS), embed_dim=8, word_dim=4))
    own.read_pictures_by(load_picture_encoder(clip))
    save_model(own, tmp_path / "own", WORDS)  # with its encoder, which is not named then
    of_own = tmp_path / "of own"
    assert crossret("index", album, "--model", tmp_path / "own", "--output", of_own) == 0
    (album / "8.png").unlink()
    assert crossret("index", album, "--output", of_own) == 0
    assert crossret.out == f"{of_own}: 8 pictures: 8 unchanged, 1 gone\n{without}"
    err = crossret.refused("index", album, "--encoder", clip, "--output", of_own)
    assert "--encoder makes no difference" in err

    sheet, lines, html = tmp_path / "found.png", tmp_path / "found.jsonl", tmp_path / "why.html"
    for place in (index, of_own):
        arguments = ("search", place, *QUERIES, "-k", "4", "--sheet", sheet, "--output", lines, "--html", html)
        assert crossret(*arguments) == 0, crossret.err
        page = data_of(html)
        assert [pair["caption"] for pair in page["pairs"]] == [text for text in QUERIES for _ in range(4)]
        told = [result["score"] for line in lines.read_text().splitlines() for result in json.loads(line)["results"]]
        assert [pair["score"] for pair in page["pairs"]] == pytest.approx(told, rel=1e-4, abs=1e-6)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["caption"] for row in rows] == QUERIES
    assert all(os.path.isfile(result["picture"]) for row in rows for result in row["results"])
    with Image.open(sheet) as drawn, Image.open(rows[0]["results"][0]["picture"]) as best:
        own = np.asarray(best.convert("RGB"), float).mean((0, 1))
        shown = np.asarray(drawn, float)[60:256, 30:220]  # the first cell
        assert np.abs(shown[(shown < 250).all(2)].mean(0) - own).max() < 12
    for arguments, message in (
        ([index], "exactly one of TEXT, --caption, --captions is needed"),
        ([index, "red", "--caption", "kite"], "exactly one of TEXT, --caption, --captions is needed"),
        ([index, "red", "--sum-max"], "--sum-max is not for an index"),
        ([model, index, "--caption", "red", "--sheet", sheet], "--sheet is for an index of pictures"),
        ([model, index, "--caption", "red", "--html", html], "--html is for an index of pictures"),
        ([tmp_path / "nowhere", "red"], "nowhere: no such directory"),
    ):
        assert message in crossret.refused("search", *arguments)
