"""A page as one HTML file: its data as JSON, its pictures inside it, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from markupsafe import Markup
from numpy.typing import NDArray

from crossret.data.pictures import read_picture
from crossret.explain.page.contents import Canvas, Page, Pair, Part, Result, Way
from crossret.explain.page.scale import DARKEST, DISPLAY_GAMMA, NEARLY_UNIFORM, Scale
from crossret.files.atomic import atomic_write
from crossret.progress import Progress

# Pixels of the longer side: of pictures that are explained, of which few are larger than many, and of those found.
_LARGEST, _SMALLEST, _FOUND = 720, 200, 96
_OF_ALL = 5000  # a page's weight grows with the squares of the sides: those of all pairs' pictures together make this
_QUALITY = 75
_STEPS = 65535  # a weight is told to that part of the page's range


def write_page(page: Page, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Write a page as one file, atomically.

    Args:
        page: its contents.
        path: the file.
        progress: called with (pictures read, all of them).

    Raises:
        OSError: a picture, or the file, cannot be read or written. ValueError: a picture is malformed; names it.
    """
    made = page_html(page, progress=progress)
    with atomic_write(path) as file:
        file.write(made.encode("utf-8", "replace"))


def page_html(page: Page, *, progress: Progress | None = None) -> str:
    """The page as it is written; raises as ``write_page``."""
    own = resources.files(__package__)
    # Captions are escaped wherever they stand; style, script and data are ours, and JSON has no tag in it.
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        own.joinpath("page.html").read_text("utf-8")
    )
    style, *scripts = (own.joinpath(name).read_text("utf-8").strip() for name in ("page.css", "panels.js", "page.js"))
    text = json.dumps(page_data(page, progress), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return template.render(page=page, style=Markup(style), script=Markup("\n\n".join(scripts)), data=Markup(text))


def page_data(page: Page, progress: Progress | None = None) -> dict[str, Any]:
    """Data that the page's script reads; raises as ``write_page``."""
    scales = _scales(page.pairs)
    numbers, pictures = _pictures(page.pairs, progress)
    places = {pair.key: number for number, pair in reversed(list(enumerate(page.pairs))) if pair.key is not None}
    return {
        "darkest": DARKEST,
        "gamma": DISPLAY_GAMMA,
        "nearly_uniform": NEARLY_UNIFORM,
        "unseen": page.unseen,
        "unshared": page.unshared,
        "scales": scales,
        "pictures": pictures,
        "pairs": [_pair(pair, scales, numbers, places) for pair in page.pairs],
    }


def _pair(
    pair: Pair, scales: dict[str, Any], pictures: dict[Path, int], places: dict[tuple[object, int], int]
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "caption": pair.caption,
        "words": pair.words,
        "score": pair.score,
        "about": pair.about,
        "ways": [_way(way, scales) for way in pair.ways],
        "found": [
            {"title": title, "results": [_result(result, pictures, places) for result in results]}
            for title, results in pair.found.items()
        ],
    }
    if pair.mark is not None:
        made |= {"mark": pair.mark, "right": pair.right}
    if pair.is_other:
        made["other"] = True
    if pair.parts is not None:
        made["shares"] = [_part(part) for part in pair.parts]
    if pair.objects:
        made["objects"] = {place: [round(float(side), 1) for side in box] for place, box in pair.objects.items()}
    document = pair.document
    if not isinstance(document, Canvas):
        return {**made, "picture": None, "tokens": document}
    made |= {
        "picture": None if document.picture is None else pictures[document.picture],
        "size": [float(side) for side in document.size],
    }
    if document.boxes is not None:
        parts = document.boxes / np.tile(np.asarray(document.size, np.float64), 2)
        made |= {"boxes": _packed(parts.clip(0, 1), 0, 1), "regions": len(parts), "numbered": document.numbered}
    return made


def _way(way: Way, scales: dict[str, Any]) -> dict[str, Any]:
    scale = scales[way.name]
    made: dict[str, Any] = {
        "name": way.name,
        "title": way.title,
        "unit": way.unit,
        "over": way.over,
        "rows": len(way.weights),
        "weights": _packed(way.weights, scale["low"], scale["high"]),
    }
    if way.queries is not None:
        made["queries"] = way.queries
    if way.cosines is not None:
        made["cosines"] = [round(float(value), 4) for value in way.cosines]
    if way.word_weights is not None:
        scale = scales[_of_words(way)]
        made["words"] = _packed(way.word_weights, scale["low"], scale["high"])
    return made


def _part(part: Part) -> dict[str, Any]:
    made: dict[str, Any] = {
        "title": part.title,
        "over": part.over,
        "values": [float(f"{value:.9g}") for value in part.values],
    }
    # More digits than a float32 score has.
    return made if part.labels is None else {**made, "labels": part.labels}


def _result(result: Result, pictures: dict[Path, int], places: dict[tuple[object, int], int]) -> dict[str, Any]:
    made: dict[str, Any] = {"rank": result.rank, "score": result.score}
    if result.is_text:
        made["text"] = result.name
    else:
        made |= {"name": result.name, "picture": None if result.picture is None else pictures[result.picture]}
    if result.right is not None:
        made["right"] = result.right
    if result.key is not None and result.key in places:
        made["pair"] = places[result.key]
    return made


def _of_words(way: Way) -> str:
    return f"{way.name} words"


def _scales(pairs: Iterable[Pair]) -> dict[str, dict[str, float]]:
    """Scales of the whole page, by the name of a way, and by that of its weights of words."""
    values: dict[str, list[NDArray[np.float32]]] = {}
    similarities = set()
    for way in (way for pair in pairs for way in pair.ways):
        values.setdefault(way.name, []).append(way.weights.ravel())
        if way.word_weights is not None:
            values.setdefault(_of_words(way), []).append(way.word_weights.ravel())
        if way.unit == "similarity":
            similarities.add(way.name)
    made = {}
    for name, parts in values.items():
        scale = Scale.of(parts)
        low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
        full, dark = scale.full, 0.0
        if name in similarities:  # all of which may be the same
            full, dark = (high, float(scale.mean)) if high - scale.mean > 1e-6 else (high, high - 1)
        made[name] = {"dark": dark, "mean": float(scale.mean), "full": float(full), "low": low, "high": high}
    return made


def _packed(values: NDArray[Any], low: float, high: float) -> str:
    """Numbers as base64 of little-endian 16-bit steps from low to high: a fifth of what they take as text."""
    steps = (np.asarray(values, np.float64) - low) / (high - low or 1.0)
    return base64.b64encode(np.rint(steps.clip(0, 1) * _STEPS).astype("<u2").tobytes()).decode()


def _pictures(pairs: Iterable[Pair], progress: Progress | None) -> tuple[dict[Path, int], list[dict[str, Any]]]:
    """Every picture's number by its file, and what the page has of it."""
    pairs = list(pairs)
    explained: dict[Path, None] = {}
    found: dict[Path, None] = {}
    for pair in pairs:
        if isinstance(pair.document, Canvas) and pair.document.picture is not None:
            explained[pair.document.picture] = None
        found.update((result.picture, None) for some in pair.found.values() for result in some if result.picture)
    own = round(min(_LARGEST, max(_SMALLEST, _OF_ALL / len(pairs) ** 0.5)))
    sides = {**dict.fromkeys(found, _FOUND), **dict.fromkeys(explained, own)}
    made = []
    for number, (path, side) in enumerate(sides.items(), start=1):
        made.append({"src": _embedded(path, side)})
        if progress is not None:
            progress(number, len(sides))
    return {path: number for number, path in enumerate(sides)}, made


def _embedded(path: Path, side: int) -> str:
    """A picture as a page has it inside: a JPEG of no more than this many pixels."""
    picture = read_picture(path)
    picture.thumbnail((side, side))
    contents = io.BytesIO()
    picture.save(contents, "JPEG", quality=_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(contents.getvalue()).decode()}"
