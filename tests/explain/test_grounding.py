"""Grounding files are read and checked; nouns, heads and steps are asked what they look at; pictures show it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import crossret.explain.grounding
import crossret.explain.photographs
from crossret.data import PrecomputedCorpus, PrecomputedDataset, Vocabulary
from crossret.explain.grounding import GroundedSplit, draw_captions, play_pointing_game, spaced_captions
from crossret.explain.pointing import PointingGame
from crossret.hyperparameters import ScanConfig
from crossret.models.attention import AttentionMap, word_region_attention
from crossret.models.encoded import Encoded
from crossret.scorers import CrossAttentionScorer

SIDE = 60
LEFT, RIGHT, MIDDLE = [0, 20, 20, 40], [40, 20, 60, 40], [20, 20, 40, 40]
BOXES = np.array([[LEFT, RIGHT, MIDDLE]], np.float32)
# Every word's vector is that of the region which it looks at, or of none of them.
LOOKS = {"<start>": 3, "dog": 0, "by": 3, "cat": 1, "<end>": 3}


class Words:
    """A model whose words look at the regions that are like them, both ways if told so."""

    def __init__(self, *directions: str) -> None:
        self.scorers = [CrossAttentionScorer(direction) for direction in directions]

    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        return tuple(word_region_attention(scorer, images, captions) for scorer in self.scorers)


class Heads:
    """A model whose heads look at given regions, whatever the caption."""

    def __init__(self, *looks: int) -> None:
        self.looks = looks

    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        n, words = captions.sequences.shape[:2]
        weights = torch.full((n, len(self.looks), 3), 0.1)
        weights[:, range(len(self.looks)), self.looks] = 0.8
        names = tuple(f"head {number}" for number in range(1, len(self.looks) + 1))
        shades = torch.full((n, len(self.looks), words), 1 / words)
        return (AttentionMap("heads", weights, queries=names, word_weights=shades),)


def write_truth(directory: Path, *named: list[list[object]]) -> None:
    """The objects that the captions name, all of which read "dog by cat"."""
    lines = [json.dumps({"words": ["dog", "by", "cat"], "named": objects}) for objects in named]
    (directory / "test_grounding.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    np.save(tmp_path / "test_ims.npy", np.eye(4, dtype=np.float32)[None, :3])
    np.save(tmp_path / "test_boxes.npy", BOXES)
    (tmp_path / "test_caps.txt").write_text("dog by cat\n")
    write_truth(tmp_path, [[0, LEFT], [2, RIGHT]])
    (tmp_path / "images" / "test").mkdir(parents=True)
    Image.new("RGB", (SIDE, SIDE), (200, 100, 50)).save(tmp_path / "images" / "test" / "00000.png")
    return tmp_path


def load(directory: Path, max_words: int | None = None) -> GroundedSplit:
    data = PrecomputedDataset(directory, "test")
    vectors = torch.eye(4)
    images = Encoded(torch.from_numpy(np.array(data.features)), torch.tensor([3] * data.n_images))
    looks = list(LOOKS.values())
    looks = looks if max_words is None else [*looks[: max_words + 1], looks[-1]]
    words = vectors[looks].expand(data.n_captions, -1, -1)
    captions = Encoded(words, torch.tensor([len(looks)] * data.n_captions))
    config = ScanConfig(image_dim=4, vocabulary_size=4, max_words=max_words)
    return GroundedSplit.load(directory, "test", PrecomputedCorpus(data, Vocabulary()), images, captions, config)


def load_five(directory: Path, *named: list[list[object]]) -> GroundedSplit:
    """One image with five captions that name these objects."""
    (directory / "test_caps.txt").write_text("dog by cat\n" * 5)
    write_truth(directory, *named)
    return load(directory)


def test_nouns_that_look_at_their_objects_all_hit(directory: Path) -> None:
    assert play_pointing_game(Words("t2i"), load(directory)) == [
        PointingGame("t2i", "nouns", 2, 1.0, pytest.approx(1 / 3), 1.0, pytest.approx(1 / 3))
    ]


def test_words_that_a_model_does_not_read_are_not_asked(directory: Path) -> None:
    """Of "dog by cat" the cat, at whose place <end> stands."""
    split = load(directory, max_words=2)
    assert split.rows[0].words == ("dog", "by")
    (game,) = play_pointing_game(Words("t2i"), split)
    assert (game.asked, game.accuracy) == (1, 1.0)


def test_every_map_is_asked(directory: Path) -> None:
    games = play_pointing_game(Words("t2i", "i2t"), load(directory))
    assert [(game.map, game.query, game.asked) for game in games] == [("t2i", "nouns", 2), ("i2t", "nouns", 2)]
    assert play_pointing_game(Words(), load(directory)) == []


@pytest.mark.parametrize("at_a_time", [1, 2, 256])
def test_heads_may_look_at_any_object(directory: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr(crossret.explain.grounding, "_CAPTIONS", at_a_time)
    split = load_five(directory, [[0, LEFT], [2, RIGHT]], [], [[0, LEFT]], [], [[2, RIGHT]])  # two ask nothing
    games = play_pointing_game(Heads(0, 2), split)
    chance = pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)
    assert games == [
        PointingGame("heads", "head 1", 3, pytest.approx(2 / 3), chance, pytest.approx(2 / 3), chance),
        PointingGame("heads", "head 2", 3, 0.0, chance, 0.0, chance),
        PointingGame("heads", "all", 6, pytest.approx(1 / 3), chance, pytest.approx(1 / 3), chance),
    ]


def test_without_objects_there_is_no_game(directory: Path) -> None:
    write_truth(directory, [])
    with pytest.raises(ValueError, match="no caption names an object"):
        play_pointing_game(Words("t2i"), load(directory))


def test_spaced_captions_name_most(directory: Path) -> None:
    one, two = [[0, LEFT]], [[0, LEFT], [2, RIGHT]]
    assert spaced_captions(load_five(directory, one, [], two, one, two), 3) == [2]
    assert spaced_captions(load(directory), 0) == []


def test_picture_of_a_caption(directory: Path) -> None:
    assert draw_captions(directory / "drawn", Words("t2i"), load(directory), [0]) == ["00000.png"]
    colours = colours_of(directory / "drawn" / "00000.png")
    # The image in full brightness twice over (itself, and where a word looks), and darkened where no word looks.
    for brightness in (1.0, 0.2):
        assert (np.abs(colours - np.array([200, 100, 50]) * brightness).max(axis=1) <= 2).sum() > 100
    assert min(outlined(colours)) > 50


def test_picture_of_heads_outlines_what_they_look_at(directory: Path) -> None:
    # The image's two objects, and in the picture of a head the one that it looks at.
    green = []
    for looks in ([2, 2], [2, 0]):
        draw_captions(directory, Heads(*looks), load(directory), [0])
        green.append(outlined(colours_of(directory / "00000.png"))[1])
    assert 2.6 < 2 * green[1] / green[0] < 3.4


def colours_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)


def outlined(colours: np.ndarray) -> tuple[int, int]:
    """Pixels of red and of green outlines."""
    red, green = ((np.abs(colours - line).max(axis=1) <= 2).sum() for line in ([255, 48, 48], [48, 224, 96]))
    return int(red), int(green)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ('{"words": ["dog", "by", "cat"], "named": [[0, [1, 2, 3]]]}', "line 1: not the grounding of a caption"),
        ('{"words": ["dog", "by", "cat"], "named": [[3, [1, 2, 3, 4]]]}', "line 1: 'named' has a place outside the 3"),
        ('{"words": ["dog", "cat"], "named": []}', "not the words of the captions of test"),
    ],
)
def test_a_malformed_grounding_is_named(directory: Path, line: str, message: str) -> None:
    (directory / "test_grounding.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=f"test_grounding.jsonl.*{message}"):
        load(directory)


def test_a_picture_that_cannot_be_read_is_named(directory: Path) -> None:
    split, picture = load(directory), directory / "images" / "test" / "00000.png"
    whole = picture.read_bytes()
    for contents in (b"", b"garbage", whole[:-30], whole[:8] + whole[20:]):
        picture.write_bytes(contents)
        with pytest.raises(ValueError, match=r"images/test/00000\.png: not a readable image"):
            draw_captions(directory, Words("t2i"), split, [0])
    picture.unlink()
    with pytest.raises(FileNotFoundError, match=r"images/test/00000\.png"):
        draw_captions(directory, Words("t2i"), split, [0])
    assert not (directory / "00000.png").exists()
