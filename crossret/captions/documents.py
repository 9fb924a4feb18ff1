"""JSON of captions: Karpathy's splits, MS-COCO's annotations, lists of image and captions, and lines of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crossret.captions.images import FIELDS, CaptionedImage, Reading
from crossret.files.json import parse_json


def read_json_lines(lines: Iterable[str], found: Reading) -> None:
    """Read an entry a line; raises a ValueError that names the line where one is malformed."""
    for number, line in enumerate(lines, start=1):
        place = f"{found.path}, line {number}"
        if line.strip():
            _read_entry(parse_json(line, place), place, found)


def read_document(text: str, found: Reading) -> None:
    """Read the captions of a document; raises a ValueError that names the entry where it is malformed."""
    contents = parse_json(text, found.path)
    if isinstance(contents, list):
        for number, entry in enumerate(contents):
            _read_entry(entry, f"{found.path}: [{number}]", found)
    elif isinstance(contents, dict) and isinstance(contents.get("images"), list):
        _read_images(contents["images"], contents.get("annotations"), found)
    elif not isinstance(contents, dict) or any(name in contents for name in FIELDS["image"]):
        _read_entry(contents, f"{found.path}, line 1", found)
    else:
        for file, captions in contents.items():
            _read_entry({"image": file, "caption": captions}, f"{found.path}: {file!r}", found)


def _read_entry(values: Any, place: str, found: Reading) -> None:
    """Read an object of an image and its captions, as LAVIS's and BLIP's lists have them."""
    known = values if isinstance(values, dict) else {}
    file, captions, split = (next((known[name] for name in names if name in known), None) for names in FIELDS.values())
    texts = [captions] if isinstance(captions, str) else captions
    if not isinstance(file, str) or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f'{place}: must be an object with "image", a text, and "caption", a text or a list of texts')
    image = found.image(place, file, known.get("image_id"), split)
    for text in texts:
        image.add(text, place)


def _read_images(images: list[Any], annotations: Any, found: Reading) -> None:
    """Read Karpathy's images, which have their 'sentences', or MS-COCO's, of which 'annotations' tell."""
    file, own_id = ("filename", "cocoid") if annotations is None else ("file_name", "id")
    for number, image in enumerate(images):
        place = f"{found.path}: images[{number}]"
        sentences = image.get("sentences") if isinstance(image, dict) and annotations is None else []
        if not isinstance(image, dict) or not isinstance(sentences, list):
            raise ValueError(f"{place}: not an image with 'sentences', nor are there 'annotations' beside 'images'")
        names = image.get(file), image.get(own_id), image.get("split")
        own = found.image(place, *names, once=True, number=image.get("imgid"))
        for number_there, sentence in enumerate(sentences):
            _add(own, sentence, f"{place}, {own.id}: sentences[{number_there}]", "raw", "sentid")
    for number, annotation in enumerate(annotations if isinstance(annotations, list) else []):
        place = f"{found.path}: annotations[{number}]"
        named = found.images.get(str(annotation.get("image_id"))) if isinstance(annotation, dict) else None
        if named is None:
            raise ValueError(f"{place}: its 'image_id' is the 'id' of none of 'images'")
        _add(named, annotation, place, "caption", "id")


def _add(image: CaptionedImage, values: Any, place: str, text: str, own_id: str) -> None:
    caption = values.get(text) if isinstance(values, dict) else None
    if not isinstance(caption, str):
        raise ValueError(f"{place} has no text {text!r}")
    image.add(caption, place, values.get(own_id))
