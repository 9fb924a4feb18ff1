"""Readers of pictures, and pages of pictures and texts, of which a stranger's text must become no element."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crossret.data.pictures import read_picture
from crossret.data.precomputed import read_captions, read_ids
from crossret.explain.page.contents import Canvas, Page, Pair, Result
from crossret.explain.page.writing import page_html
from tests.readers.target import Target

PIXELS = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))


def _pictures() -> list[bytes]:
    """The picture in files of other kinds."""
    turned = Image.Exif()
    turned[0x112] = 6  # Orientation
    kinds: list[tuple[str, Image.Image, dict[str, Any]]] = [
        *((kind, PIXELS, {}) for kind in ("GIF", "BMP", "TIFF", "WEBP")),
        *(("PNG", PIXELS.convert(mode), {}) for mode in ("P", "I;16", "LA")),
        ("JPEG", PIXELS, {"exif": turned}),
        ("TIFF", PIXELS.convert("F"), {"compression": "tiff_lzw"}),
    ]
    made = []
    for kind, picture, options in kinds:
        contents = io.BytesIO()
        picture.save(contents, kind, **options)
        made.append(contents.getvalue())
    return made


def _photograph(folder: Path) -> None:
    PIXELS.save(folder / "x.png")
    (folder / "captions.txt").write_bytes("a </script><img src=x onerror=boom()> & “cat”\n<!-- <script>\n".encode())
    (folder / "ids.txt").write_bytes(b"<b>1\n'2\n")


class _Elements(HTMLParser):
    """The tags of a page, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(f"{tag} {' '.join(name for name, _ in attrs)}")


def _read_page(folder: Path) -> None:
    """A page holds captions and names as they are, and no element of theirs."""
    captions, names = read_captions(folder / "captions.txt")[:9], read_ids(folder / "ids.txt")[:9] or ["none"]
    plain = ["a"] * len(captions), ["a"] * len(names)
    made = [_page(folder / "x.png", *texts) for texts in ((captions, names), plain)]
    assert _Elements(made[0]).found == _Elements(made[1]).found
    text = re.search('<script type="application/json" id="data">(.*?)</script>', made[0], re.DOTALL)
    assert text is not None
    assert [pair["caption"] for pair in json.loads(text[1])["pairs"]] == captions


def _page(picture: Path, captions: list[str], names: list[str]) -> str:
    results = [Result(1, name, 0.5, picture=picture) for name in names]
    canvas, found = Canvas(picture, (4, 4), None), {"found": results}
    pairs = [Pair(each, (each,), canvas, 1.0, (), None, about=names[0], found=found) for each in captions]
    return page_html(Page(captions[0], pairs, facts=[(captions[-1], names[-1])], unseen=names[0], notes=captions))


PAGES: dict[str, Target] = {
    "pictures/file": Target(_photograph, "x.png", lambda folder: read_picture(folder / "x.png"), seeds=_pictures),
    "page/captions": Target(_photograph, "captions.txt", _read_page),
    "page/ids": Target(_photograph, "ids.txt", _read_page),
    "page/picture": Target(_photograph, "x.png", _read_page, seeds=_pictures),
}
