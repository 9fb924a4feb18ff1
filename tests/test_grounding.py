"""Grounding files are read and checked; nouns are asked at their own words; the picture shows boxes and brightness."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crossret.encoded import Encoded
from crossret.grounding import GroundedSplit, draw_caption, play_pointing_game
from crossret.scorers import CrossAttentionScorer

SIDE = 60
LEFT, RIGHT, MIDDLE = [0, 20, 20, 40], [40, 20, 60, 40], [20, 20, 40, 40]
BOXES = np.array([[LEFT, RIGHT, MIDDLE]], np.float32)
# Every word's vector is that of the region which it looks at, or of none of them.
LOOKS = {"<start>": 3, "dog": 0, "by": 3, "cat": 1, "<end>": 3}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    np.save(tmp_path / "test_boxes.npy", BOXES)
    entry = {"words": ["dog", "by", "cat"], "named": [[0, LEFT], [2, RIGHT]]}
    (tmp_path / "test_grounding.jsonl").write_text(json.dumps(entry) + "\n")
    (tmp_path / "images" / "test").mkdir(parents=True)
    Image.new("RGB", (SIDE, SIDE), (200, 100, 50)).save(tmp_path / "images" / "test" / "00000.png")
    return tmp_path


def load(directory: Path) -> GroundedSplit:
    vectors = torch.eye(4)
    images = Encoded(vectors[None, :3], torch.tensor([3]))
    captions = Encoded(vectors[list(LOOKS.values())][None], torch.tensor([len(LOOKS)]))
    return GroundedSplit.load(directory, "test", images, captions, np.array([0]))


def test_nouns_that_look_at_their_objects_all_hit(directory: Path) -> None:
    game = play_pointing_game(CrossAttentionScorer(), load(directory))
    assert (game.nouns, game.accuracy, game.centre_accuracy) == (2, 1.0, 1.0)
    assert game.chance == game.centre_chance == pytest.approx(1 / 3)


def test_nouns_that_look_elsewhere_miss(directory: Path) -> None:
    entry = {"words": ["dog", "by", "cat"], "named": [[0, RIGHT], [2, MIDDLE]]}
    (directory / "test_grounding.jsonl").write_text(json.dumps(entry))
    game = play_pointing_game(CrossAttentionScorer(), load(directory))
    assert (game.accuracy, game.centre_accuracy) == (0, 0)


def test_without_nouns_there_is_no_game(directory: Path) -> None:
    (directory / "test_grounding.jsonl").write_text(json.dumps({"words": ["dog", "by", "cat"], "named": []}))
    with pytest.raises(ValueError, match="no nouns"):
        play_pointing_game(CrossAttentionScorer(), load(directory))


def test_picture_of_a_caption(directory: Path) -> None:
    path = directory / "attention.png"
    draw_caption(path, CrossAttentionScorer(), load(directory), 0)
    with Image.open(path) as picture:
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    # The image in full brightness twice over (itself, and where a word looks), and darkened where no word looks.
    for brightness in (1.0, 0.2):
        assert (np.abs(colours - np.array([200, 100, 50]) * brightness).max(axis=1) <= 2).sum() > 100
    for outline in ([255, 48, 48], [48, 224, 96]):
        assert (np.abs(colours - outline).max(axis=1) <= 2).sum() > 50


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: not a JSON object"),
        ('{"words": ["dog", "by", "cat"]}', "line 1: not the grounding of a caption"),
        ('{"words": ["dog", "by", "cat"], "named": [[0, [1, 2, 3]]]}', "line 1: not the grounding of a caption"),
        ('{"words": ["dog", "by", "cat"], "named": [[3, [1, 2, 3, 4]]]}', "line 1: 'named' has a place outside the 3"),
        (
            '{"words": ["dog", "by", "cat"], "named": [[1.5, [1, 2, 3, 4]]]}',
            "line 1: 'named' has a place outside the 3",
        ),
        ('{"words": ["dog", "by", "cat"], "named": [[[], [1, 2, 3, 4]]]}', "line 1: not the grounding of a caption"),
        ('{"words": ["dog", "by", "cat"], "named": [[0, [1, 2, 3, "x"]]]}', "line 1: not the grounding of a caption"),
        ('{"words": ["dog", "by", "cat"], "named": [[0, [1, 2, 3, NaN]]]}', "line 1: 'named' has a box that is not"),
        ('{"words": "dog", "named": []}', "line 1: 'words' is not a list of words"),
        ('{"words": ["dog", 1, "cat"], "named": []}', "line 1: 'words' is not a list of words"),
        ('{"words": ["dog", "cat"], "named": []}', "not the words of the encoded captions"),
    ],
)
def test_a_malformed_grounding_is_named(directory: Path, line: str, message: str) -> None:
    (directory / "test_grounding.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=f"test_grounding.jsonl.*{message}"):
        load(directory)


def test_boxes_of_other_regions_are_named(directory: Path) -> None:
    np.save(directory / "test_boxes.npy", BOXES[:, :2])
    with pytest.raises(ValueError, match=r"test_boxes\.npy"):
        load(directory)


def test_boxes_that_are_no_array_are_named(directory: Path) -> None:
    (directory / "test_boxes.npy").write_bytes(b"garbage")
    with pytest.raises(ValueError, match=r"test_boxes\.npy: not a readable \.npy file"):
        load(directory)


def test_a_picture_that_cannot_be_read_is_named(directory: Path) -> None:
    split, picture = load(directory), directory / "images" / "test" / "00000.png"
    whole = picture.read_bytes()
    for contents in (b"", b"garbage", whole[:-30], whole[:8] + whole[20:]):
        picture.write_bytes(contents)
        with pytest.raises(ValueError, match=r"images/test/00000\.png: not a readable image"):
            draw_caption(directory / "attention.png", CrossAttentionScorer(), split, 0)
    picture.unlink()
    with pytest.raises(FileNotFoundError, match=r"images/test/00000\.png"):
        draw_caption(directory / "attention.png", CrossAttentionScorer(), split, 0)
    assert not (directory / "attention.png").exists()
