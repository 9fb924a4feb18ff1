"""Captions: read back word by word, they are true of the picture."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.data import tokenize
from crossret.data.scenes.captions import describe
from crossret.data.scenes.drawing import draw_scene
from crossret.data.scenes.world import BACKGROUNDS, COLOURS, IMAGE_SIZE, TEXTURES, sample_scene

# Written out again rather than imported: this is what the words mean, whatever the grammar thinks.
MEANING = {
    "circle": "circle",
    "disc": "circle",
    "square": "square",
    "box": "square",
    "triangle": "triangle",
    "star": "star",
    "heart": "heart",
    "ring": "ring",
    "hoop": "ring",
    "cross": "cross",
    "crescent": "crescent",
    "moon": "crescent",
}
SIZE_MEANING = {"small": "small", "little": "small", "large": "large", "big": "large"}
GLUE = {"a", "an", "is", "and", "to", "the", "of", "on", "in", "at", "side", "corner", "middle", "top", "bottom", ","}
PLACES = {"left", "right", "above", "below", "under"}

# Universal POS tags; what stands for more than one is below.
TAGS = {
    **dict.fromkeys([*SIZE_MEANING, *COLOURS, *TEXTURES], "ADJ"),
    **dict.fromkeys([*MEANING, *BACKGROUNDS, "side", "corner", "middle"], "NOUN"),
    **dict.fromkeys(["a", "an", "the"], "DET"),
    **dict.fromkeys(["to", "of", "on", "in", "at", "above", "below", "under"], "ADP"),
    "is": "AUX",
    "and": "CCONJ",
    ",": "PUNCT",
}


def tag(before, word, after):
    """The tag of a word between its neighbours."""
    if word in TAGS:
        return TAGS[word]
    if before == "the" and ((word in ("top", "bottom") and after not in ("left", "right", "corner")) or after == "of"):
        return "NOUN"  # "at the top", "to the left of"
    return "ADV" if after == "of" else "ADJ"  # "left of"; "on the left side", "in the top left corner"


def centre(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def holds(word, subject, other):
    (x, y), (other_x, other_y) = centre(subject), centre(other)
    return {
        "left": x < other_x,
        "right": x > other_x,
        "above": y < other_y,
        "below": y > other_y,
        "under": y > other_y,
    }[word]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 500))
def test_captions_are_true_of_the_picture(seed, index):
    scene = sample_scene(seed, "train", index)
    boxes = draw_scene(scene).object_boxes
    captions = describe(scene, np.random.default_rng(seed))
    assert len({caption.text for caption in captions}) == 5
    for caption in captions:
        words = tokenize(caption.text)
        assert "".join(words) == caption.text.lower().replace(" ", "")
        around = zip(["", *words], words, [*words[1:], ""], strict=False)
        assert list(caption.pos) == [tag(*neighbours) for neighbours in around]
        nouns = [place for place, word in enumerate(words) if word in MEANING]
        assert nouns == [place for place, _ in caption.named]
        numbers = [number for _, number in caption.named]
        assert 1 <= len(set(numbers)) == len(numbers) <= 3
        assert set(words) <= GLUE | PLACES | set(MEANING) | set(SIZE_MEANING) | {*COLOURS, *TEXTURES, *BACKGROUNDS}

        # Every noun phrase fits the object that it names, and no other.
        for place, number in caption.named:
            start = max(n for n in range(place) if words[n] in ("a", "an"))
            assert (words[start] == "an") is (words[start + 1][0] in "aeiou")
            phrase = words[start + 1 : place + 1]
            told = {SIZE_MEANING.get(word, MEANING.get(word, word)) for word in phrase}
            assert len(told) == len(phrase) >= 2
            assert [n for n, thing in enumerate(scene.objects) if told <= set(thing.attributes)] == [number]

        # What is said between two nouns places the first noun's object.
        subject = boxes[numbers[0]]
        for (start, _), (end, number) in zip(caption.named, caption.named[1:], strict=False):
            (word,) = [word for word in words[start:end] if word in PLACES]
            assert holds(word, subject, boxes[number])
        after = words[nouns[-1] + 1 :]
        x, y = (min(int(value // (IMAGE_SIZE / 3)), 2) for value in centre(subject))
        if len(nouns) == 1:
            assert {"left", "right", "top", "bottom", "middle"} & set(after), "a lone object is placed in the image"
            for word, column in (("left", 0), ("right", 2)):
                assert (word in after) is (x == column)
            for word, row in (("top", 0), ("bottom", 2)):
                assert (word in after) is (y == row)
            assert ("middle" in after) is (x == y == 1)
        else:
            assert not {"side", "corner", "middle", "top", "bottom"} & set(words)
        assert {word for word in words if word in BACKGROUNDS} <= {scene.background}
