"""Attention held against the truth: which object every noun of a rendered scene's captions names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from crossret.array_files import map_array
from crossret.data.scenes.layout import boxes_path, grounding_path, picture_path
from crossret.encoded import Encoded
from crossret.explain import Attention, PointingGame, pointing_game, word_region_attention
from crossret.pictures import draw_attention
from crossret.report import read_json_lines
from crossret.scorers import CrossAttentionScorer


@dataclass(frozen=True)
class Grounding:
    """The words of one caption, and the boxes (4,) of the objects that some of them name, by the word's place."""

    words: list[str]
    objects: dict[int, NDArray[np.float32]]


@dataclass(frozen=True)
class GroundedSplit:
    """A split of rendered scenes as a model encodes it, and what is true of it.

    Attributes:
        images, captions: the encoded split; a caption is its words between <start> and <end>.
        image_of_caption: (n_captions,) int64.
        pictures: the image files, in order.
        boxes: (n_images, R, 4) float32 x0, y0, x1, y1 of the regions in pixels.
        grounding: one entry a caption.
    """

    images: Encoded
    captions: Encoded
    image_of_caption: NDArray[np.int64]
    pictures: list[Path]
    boxes: NDArray[np.float32]
    grounding: list[Grounding]

    @classmethod
    def load(
        cls, directory: Path, split: str, images: Encoded, captions: Encoded, image_of_caption: NDArray[np.int64]
    ) -> GroundedSplit:
        """Add to an encoded split what ``render_scenes`` wrote about it.

        Raises:
            OSError: a file is missing or unreadable.
            ValueError: a file is malformed or of another split; names the file.
        """
        boxes_file, grounding_file = boxes_path(directory, split), grounding_path(directory, split)
        boxes = map_array(boxes_file, ndim=3, dtypes=["<f4"])
        if boxes.shape != (*images.sequences.shape[:2], 4):
            raise ValueError(f"{boxes_file}: shape {boxes.shape} is not of the boxes of the encoded regions")
        grounding = _read_grounding(grounding_file)
        if [len(caption.words) + 2 for caption in grounding] != captions.lengths.tolist():
            raise ValueError(f"{grounding_file}: not the words of the encoded captions")
        pictures = [picture_path(directory, split, image) for image in range(len(images))]
        return cls(images, captions, image_of_caption, pictures, boxes, grounding)

    def attention(self, scorer: CrossAttentionScorer, captions: NDArray[np.int64]) -> Attention:
        """The attention of these captions over their own images, <start> and <end> included."""
        images = torch.from_numpy(self.image_of_caption[captions])
        return word_region_attention(scorer, self.images[images], self.captions[torch.from_numpy(captions)])


def play_pointing_game(scorer: CrossAttentionScorer, split: GroundedSplit) -> PointingGame:
    """The pointing game, by both of its rules, with every noun of every caption."""
    strongest = split.attention(scorer, np.arange(len(split.captions))).strongest().numpy()
    nouns = [(caption, place) for caption, truth in enumerate(split.grounding) for place in truth.objects]
    captions, places = np.array(nouns, dtype=np.int64).reshape(-1, 2).T
    objects = np.array([split.grounding[caption].objects[place] for caption, place in nouns], np.float32)
    # Word 0 of an encoded caption is <start>.
    return pointing_game(strongest[captions, places + 1], split.boxes[split.image_of_caption[captions]], objects)


def draw_caption(
    path: str | os.PathLike[str], scorer: CrossAttentionScorer, split: GroundedSplit, caption: int
) -> None:
    """Write the picture of one caption's attention over its image; see ``draw_attention``.

    Raises:
        OSError: the image's file is missing, or the picture cannot be written.
        ValueError: the image's file is malformed; names it.
    """
    attention = split.attention(scorer, np.array([caption]))
    image = int(split.image_of_caption[caption])
    truth = split.grounding[caption]
    words = slice(1, 1 + len(truth.words))  # without <start> and <end>
    pixels = _read_picture(split.pictures[image])
    draw_attention(
        path,
        pixels,
        split.boxes[image],
        truth.words,
        attention.strength[0, words].numpy(),
        attention.strongest()[0, words].tolist(),
        truth.objects,
    )


def _read_picture(path: Path) -> NDArray[np.uint8]:
    with open(path, "rb") as file:
        try:
            with Image.open(file) as picture:
                return np.asarray(picture.convert("RGB"))
        # What decoders raise of malformed files, which does not name them.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path}: not a readable image ({error})") from error


def _read_grounding(path: Path) -> list[Grounding]:
    entries = []
    for number, entry in enumerate(read_json_lines(path), start=1):
        try:
            words, objects = entry["words"], dict(entry["named"])
            boxes = {place: np.array(box, np.float32).reshape(4) for place, box in objects.items()}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}, line {number}: not the grounding of a caption ({error})") from error
        if type(words) is not list or not all(type(word) is str for word in words):
            raise ValueError(f"{path}, line {number}: 'words' is not a list of words")
        if not all(type(place) is int and 0 <= place < len(words) for place in boxes):
            raise ValueError(f"{path}, line {number}: 'named' has a place outside the {len(words)} words")
        if not all(np.isfinite(box).all() for box in boxes.values()):
            raise ValueError(f"{path}, line {number}: 'named' has a box that is not of finite numbers")
        entries.append(Grounding(words, boxes))
    return entries
