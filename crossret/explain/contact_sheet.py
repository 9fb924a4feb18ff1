"""A contact sheet: the pictures that a search found, a row a query, best first."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from crossret.data.pictures import read_picture
from crossret.files.atomic import atomic_write

_CELL, _GAP, _MARGIN = 200, 14, 24  # pixels
_CAPTION, _LABEL = 20, 13  # sizes of letters
_INK, _PALE, _PAPER, _FRAME = "#1c1c1e", "#6b6b70", "#ffffff", "#e4e4e7"
_MOST_PIXELS = 2**26


@dataclass(frozen=True)
class SheetRow:
    """A query and what it found.

    Attributes:
        caption: the query.
        pictures: files with their scores, best first.
    """

    caption: str
    pictures: Sequence[tuple[Path, float]]


def draw_sheet(rows: Sequence[SheetRow], path: Path) -> None:
    """Draw pictures with their ranks, scores and names under the captions that found them, as a PNG file.

    Raises:
        OSError: a picture, or the file, cannot be read or written. ValueError: a picture is malformed, or there is more
            than a sheet has room for; names it.
    """
    across = max(len(row.pictures) for row in rows)
    step = _CAPTION + _GAP + _CELL + 2 * (_LABEL + 5) + 2 * _GAP
    size = 2 * _MARGIN + across * (_CELL + _GAP) - _GAP, 2 * _MARGIN + len(rows) * step - _GAP
    if size[0] * size[1] > _MOST_PIXELS:
        raise ValueError(f"{path}: {len(rows)} queries of {across} pictures are too many for one sheet")
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    letters = {height: ImageFont.truetype(findfont("DejaVu Sans"), height) for height in (_CAPTION, _LABEL)}
    for number, row in enumerate(rows):
        top = _MARGIN + number * step
        draw.text(
            (_MARGIN, top), _fitting(row.caption, letters[_CAPTION], size[0] - 2 * _MARGIN), _INK, letters[_CAPTION]
        )
        top += _CAPTION + _GAP
        for rank, (file, score) in enumerate(row.pictures):
            left = _MARGIN + rank * (_CELL + _GAP)
            draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), outline=_FRAME)
            picture = read_picture(file)
            picture.thumbnail((_CELL, _CELL))
            if max(picture.size) < _CELL:  # a small one is enlarged
                larger = _CELL / max(picture.size)
                picture = picture.resize(
                    (max(1, round(picture.width * larger)), max(1, round(picture.height * larger)))
                )
            sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
            label = top + _CELL + 5
            draw.text((left, label), f"{rank + 1}", _INK, letters[_LABEL])
            draw.text((left + _CELL, label), f"{score:.3f}", _PALE, letters[_LABEL], anchor="ra")
            draw.text((left, label + _LABEL + 4), _fitting(file.name, letters[_LABEL], _CELL), _PALE, letters[_LABEL])
    made = io.BytesIO()
    sheet.save(made, "PNG")
    with atomic_write(path) as file_:
        file_.write(made.getvalue())


def _fitting(text: str, letters: ImageFont.FreeTypeFont, width: int) -> str:
    """Beginning of a text that a width has room for, in one line."""
    line = " ".join(text.split())
    if letters.getlength(line) <= width:
        return line
    while line and letters.getlength(line + "…") > width:
        line = line[:-1]
    return line + "…"
