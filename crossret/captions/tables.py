"""Tables of captions: a row names an image's file, perhaps the caption's number, and the caption, as Flickr's do."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from crossret.captions.images import FIELDS, Reading
from crossret.files.unicode import escaped

_FILE = re.compile(r'.*?\.(jpe?g|png|gif|bmp|tiff?|webp)(#[0-9]+)?"? *[\t|,;]', re.IGNORECASE)
"""A line's beginning up to the end of a picture's file, which may have commas in it, and what lies behind it."""


def read_table(lines: Sequence[str], found: Reading) -> None:
    """Read the captions of a table.

    A header tells the columns; else they are image and caption, or image, number and caption. Cells may be quoted as
    the csv module does, over several lines, too. Where a file is not written so throughout, quotes are parts of
    captions, but for those around one between commas. Raises a ValueError that names the line of a malformed row.
    """
    lines = [line.replace("\r", " ") for line in lines]  # within a row, as csv takes it for the end of one
    delimiter, columns, header = _layout(lines, found.path)
    most = len(columns) - 1 if columns[-1] == "caption" else -1  # delimiters in a caption that comes last are its own
    expected = f"{', '.join(name or 'another' for name in columns)} with {delimiter!r} between"
    try:
        if delimiter == "\t":  # quotes are text, as in Flickr's files
            raise csv.Error
        rows = list(_quoted(lines, delimiter, most))
    except csv.Error as error:
        rows = [(number, _unquoted(line, delimiter, most)) for number, line in enumerate(lines, start=1)]
        expected += f"; quotes are read as text, for {error}" if str(error) else ""
    body = [(number, cells) for number, cells in rows[header:] if lines[number - 1].strip()]
    numbered = columns == ["image", "", "caption"] and any(
        "".join(cells[1:2]).strip().isdecimal() for _, cells in body[:1]
    )
    for number, cells in body:
        place = f"{found.path}, line {number}"
        if numbered and len(cells) > 1 and not cells[1].strip().isdecimal():
            lacking = re.fullmatch(r"\s*([0-9]+)\s+(\S.*)", delimiter.join(cells[1:]))
            cells[1:] = lacking.groups() if lacking else []
            found.notes[f"lacks the {delimiter!r} before its caption, and is read"] += [place] if lacking else []
        row = {column: cell.strip() for column, cell in zip(columns, cells, strict=False)}
        if len(cells) != len(columns) or not row["image"]:
            raise ValueError(f"{place}: {escaped(lines[number - 1])!r} is not a row of {expected}")
        file = re.sub(r"#[0-9]+$", "", row["image"])
        if behind := re.fullmatch(r"(.+\.jpe?g)\.[0-9]+", file, re.IGNORECASE):  # in Flickr8k.token
            file = behind[1]
            found.notes["has a number behind the ending of its image, which is left out"].append(place)
        image = found.image(place, file, None, row.get("split") or None)
        image.add(row["caption"], place)


def _layout(lines: Sequence[str], path: str) -> tuple[str, list[str], bool]:
    """Delimiter of columns, their fields ("" where nothing is read), and whether the first line is a header."""
    first = lines[0]
    named = False
    for delimiter in "\t|,;":
        names = [re.sub(r"[ -]+", "_", name.strip(' "').lower()) for name in first.split(delimiter)]
        columns = {field: next((name for name in known if name in names), None) for field, known in FIELDS.items()}
        if columns["image"] and columns["caption"]:
            return delimiter, [next((f for f in columns if columns[f] == name), "") for name in names], True
        named = named or bool(columns["image"] or columns["caption"])
    end = _FILE.match(first) or re.search("\t", first) or re.search("[|,;]", first)
    has_file = [_FILE.match(line) is not None for line in lines[:2]]
    if end is None or (named and not has_file[0]) or has_file == [False, True]:
        raise ValueError(
            f"{path}, line 1: {escaped(first)!r} is not an image's file, a tab, '|', ',' or ';', and a caption, and no "
            f"header of {' or '.join(FIELDS['image'])} and {' or '.join(FIELDS['caption'])}"
        )
    delimiter = end[0][-1]
    cells = first.split(delimiter)
    numbered = len(cells) > 2 and cells[1].strip(' "').isdecimal()
    return delimiter, ["image", "", "caption"] if numbered else ["image", "caption"], False


def _quoted(lines: Sequence[str], delimiter: str, most: int) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, cells) of each row; raises a csv.Error where one is not written as CSV."""
    between = re.escape(delimiter)
    cell = f'(?:"[^"]*(?:""[^"]*)*"|[^"{between}]*)'
    conforming = re.compile(f"{cell}(?:{between}{cell})*")
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    first = 0
    try:
        for cells in reader:
            text = "\n".join(lines[first : reader.line_num])
            more = 0 < most < len(cells) - 1
            if '"' in text and (more or not conforming.fullmatch(text)):
                raise csv.Error
            yield first + 1, text.split(delimiter, most) if more else cells
            first = reader.line_num
    except csv.Error:
        raise csv.Error(f"line {first + 1} is not quoted as CSV") from None


def _unquoted(line: str, delimiter: str, most: int) -> list[str]:
    """The cells of a row whose quotes are text, but for those around a caption behind a comma."""
    cells = line.split(delimiter, most)
    if delimiter in ",;" and cells[-1].lstrip().startswith('"'):
        with suppress(csv.Error):
            cells[-1:] = next(csv.reader([cells[-1].strip()], delimiter=delimiter, strict=True))
    return [] if line.startswith('"') else cells
