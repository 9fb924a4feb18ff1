"""A grammar that tells true things about a scene, and knows of every word its part of speech and what it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from crossret.data.owners import PUBLISHED_CAPTIONS
from crossret.data.scenes.world import IMAGE_SIZE, Scene, SceneObject

CAPTIONS_PER_SCENE = PUBLISHED_CAPTIONS

T = TypeVar("T")

# A phrase is a list of words, each with its part of speech and the number of the object that it names, or None.
Phrase = list[tuple[str, str, int | None]]

NOUNS = {
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "heart": ("heart",),
    "ring": ("ring", "hoop"),
    "cross": ("cross",),
    "crescent": ("crescent", "moon"),
}
SIZE_WORDS = {"small": ("small", "little"), "large": ("large", "big")}
# With the parts of speech as Universal POS tags: "left" is a noun after "the" and an adverb without it.
RELATIONS = {
    "left": (("to the left of", "ADP DET NOUN ADP"), ("left of", "ADV ADP")),
    "right": (("to the right of", "ADP DET NOUN ADP"), ("right of", "ADV ADP")),
    "above": (("above", "ADP"),),
    "below": (("below", "ADP"), ("under", "ADP")),
}
CLEAR_ZONE = 6.0  # pixels from the border of a third of the image before a zone is told
SIZE_TOLD, TEXTURE_TOLD, BACKGROUND_TOLD = 0.6, 0.7, 0.4
OBJECTS_TOLD = {1: 0.1, 2: 0.5, 3: 0.4}


@dataclass(frozen=True)
class Caption:
    """A caption, and what is known of its words.

    Attributes:
        text: as it is written.
        pos: the Universal POS tag of each word of the tokenized caption, in its use there. "is" is an AUX, as every
            copula.
        named: places in the tokenized caption of nouns that name objects, with the numbers of the objects.
    """

    text: str
    pos: tuple[str, ...]
    named: tuple[tuple[int, int], ...]


def describe(scene: Scene, rng: np.random.Generator) -> list[Caption]:
    """Five different captions, each of 1 to 3 objects, their attributes and where they are.

    Every noun phrase is true of one object of the scene only. Every caption starts from another object while they last.
    """
    subjects = rng.permutation(len(scene.objects))
    captions: list[Caption] = []
    while len(captions) < CAPTIONS_PER_SCENE:
        caption = _describe_from(scene, int(subjects[len(captions) % len(subjects)]), rng)
        if caption.text not in [other.text for other in captions]:
            captions.append(caption)
    return captions


def relation(subject: SceneObject, other: SceneObject) -> str:
    """How the subject lies to another object, by the larger of the two offsets between their centres.

    Objects do not overlap, so that offset is never less than 24 pixels.
    """
    dx, dy = subject.x - other.x, subject.y - other.y
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "below" if dy > 0 else "above"


def zone(thing: SceneObject) -> str | None:
    """Where the object's centre lies on a grid of thirds, in words; None near the border of a third."""
    across, down = _third(thing.x, ("left", "middle", "right")), _third(thing.y, ("top", "middle", "bottom"))
    if across is None or down is None:
        return None
    if down == "middle":
        return "in the middle" if across == "middle" else f"on the {across} side"
    return f"at the {down}" if across == "middle" else f"in the {down} {across} corner"


def _third(position: float, names: tuple[str, str, str]) -> str | None:
    third = IMAGE_SIZE / 3
    nearest_border = min(abs(position - third), abs(position - 2 * third))
    return None if nearest_border < CLEAR_ZONE else names[int(position // third)]


def _describe_from(scene: Scene, subject: int, rng: np.random.Generator) -> Caption:
    """A caption whose first noun is the subject."""
    thing = scene.objects[subject]
    others = [int(other) for other in rng.permutation(len(scene.objects)) if other != subject]
    count = min(int(rng.choice(list(OBJECTS_TOLD), p=list(OBJECTS_TOLD.values()))), len(scene.objects))
    place = zone(thing)
    phrase = _noun_phrase(scene, subject, rng)
    if count == 1 and place is not None:
        # Before the noun that ends it only what tells the place: "in the top left corner".
        phrase += _words(place, " ".join(["ADP DET", *["ADJ"] * (len(place.split()) - 3), "NOUN"]))
    else:
        count = max(count, 2)  # an object near the border of a third is placed by another object
        if count > 2 or _pick((True, False), rng):
            phrase += _words("is", "AUX")
        for number, other in enumerate(others[: count - 1]):
            phrase += _words("and", "CCONJ") if number else []
            phrase += _words(*_pick(RELATIONS[relation(thing, scene.objects[other])], rng))
            phrase += _noun_phrase(scene, other, rng)
    if rng.random() < BACKGROUND_TOLD:
        ground = _words(f"on the {scene.background}", "ADP DET NOUN")
        phrase = ground + _words(",", "PUNCT") + phrase if rng.random() < 0.5 else phrase + ground
    text = " ".join(word for word, _, _ in phrase).replace(" ,", ",")
    pos = tuple(tag for _, tag, _ in phrase)
    named = tuple((place, number) for place, (_, _, number) in enumerate(phrase) if number is not None)
    return Caption(text[0].upper() + text[1:], pos, named)


def _noun_phrase(scene: Scene, number: int, rng: np.random.Generator) -> Phrase:
    """An article, adjectives and the noun; enough adjectives that no other object of the scene answers to them."""
    thing = scene.objects[number]
    told = {"shape", "colour"}
    told |= {"size"} if rng.random() < SIZE_TOLD else set()
    told |= {"texture"} if rng.random() < TEXTURE_TOLD else set()
    missing = [attribute for attribute in ("texture", "size") if attribute not in told]
    while _ambiguous(scene, number, told):
        told.add(missing.pop())  # the four attributes together are unambiguous in every scene
    adjectives = [_pick(SIZE_WORDS[thing.size], rng)] if "size" in told else []
    adjectives += [thing.texture] if "texture" in told else []
    adjectives.append(thing.colour)
    article = "an" if adjectives[0][0] in "aeiou" else "a"
    return [
        *_words(" ".join([article, *adjectives]), " ".join(["DET", *["ADJ"] * len(adjectives)])),
        (_pick(NOUNS[thing.shape], rng), "NOUN", number),
    ]


def _ambiguous(scene: Scene, number: int, told: set[str]) -> bool:
    thing = scene.objects[number]
    return any(
        all(getattr(thing, attribute) == getattr(other, attribute) for attribute in told)
        for place, other in enumerate(scene.objects)
        if place != number
    )


def _words(text: str, pos: str) -> Phrase:
    """Words that name no object, with as many parts of speech."""
    return [(word, tag, None) for word, tag in zip(text.split(), pos.split(), strict=True)]


def _pick(values: Sequence[T], rng: np.random.Generator) -> T:
    return values[int(rng.integers(len(values)))]
