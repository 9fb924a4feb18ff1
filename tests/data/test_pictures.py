"""Pictures of every mode and format that Pillow opens, against pixels that NumPy computes, and what no picture is."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
import pytest
from numpy.typing import NDArray
from PIL import Image, features

from crossret.data import pictures
from crossret.data.pictures import MOST_PIXELS, check_picture, find_pictures, pictures_below, read_picture

HEIGHT, WIDTH = 12, 20
DOWN, ACROSS = np.mgrid[:HEIGHT, :WIDTH]
# Smooth, so that lossy formats keep it, and 0 and 255 are in it.
GREY = ((DOWN * WIDTH + ACROSS) * 255 // (HEIGHT * WIDTH - 1)).astype(np.uint8)
RGB = np.stack([GREY, GREY[::-1], (255 - ACROSS * 9).astype(np.uint8)], 2)
ALPHA = (ACROSS * 255 // (WIDTH - 1)).astype(np.uint8)
INDICES = (ACROSS % 4).astype(np.uint8)
PALETTE = np.array([[250, 10, 20], [0, 200, 0], [30, 40, 255], [90, 80, 70]], np.uint8)


def bytes_of(picture: Image.Image, form: str, **options: Any) -> bytes:
    made = io.BytesIO()
    picture.save(made, form, **options)
    return made.getvalue()


def saved(pixels: NDArray[Any], mode: str, form: str, **options: Any) -> bytes:
    """What Pillow writes of pixels of a mode."""
    contents = np.packbits(pixels, axis=1) if mode == "1" else np.ascontiguousarray(pixels)
    picture = Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), contents.tobytes())
    if mode == "P":
        picture.putpalette(PALETTE.tobytes())
    return bytes_of(picture, form, **options)


def tiff(samples: NDArray[Any], data: bytes | None = None, *, bits: int = 0, white_is_zero: bool = False) -> bytes:
    """A TIFF file of one grey strip, in the byte order and of the kind of the samples' dtype."""
    order = ">" if samples.dtype.str[0] == ">" else "<"
    own = samples.tobytes() if data is None else data
    height, width = samples.shape
    fields = {
        256: width,
        257: height,
        258: bits or 8 * samples.dtype.itemsize,
        259: 1,
        262: 0 if white_is_zero else 1,
        273: 8,
        277: 1,
        278: height,
        279: len(own),
        339: {"u": 1, "i": 2, "f": 3}[samples.dtype.kind],
    }
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in fields.items())
    head = (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(f"{order}I", 8 + len(own))
    return head + own + struct.pack(f"{order}H", len(fields)) + entries + bytes(4)


def on_white(colours: NDArray[Any], alpha: NDArray[Any]) -> NDArray[np.float64]:
    share = alpha[..., None] / 255
    return colours * share + 255 * (1 - share)


def grey(values: NDArray[Any]) -> NDArray[np.float64]:
    """The same in red, green and blue."""
    return np.repeat(np.asarray(values, float)[..., None], 3, 2)


def turned(form: str, **options: Any) -> bytes:
    """RGB as a camera writes it that was held on its side, and says so."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return bytes_of(Image.fromarray(np.ascontiguousarray(np.rot90(RGB))), form, exif=exif, **options)


COLOURS = PALETTE[INDICES]
RGBA, LA = np.dstack([RGB, ALPHA]), np.dstack([GREY, ALPHA])
BITS = GREY > 127
WIDE = GREY.astype(np.uint16) * 257
DEEP = GREY.astype(np.int32) * 257
ONE_IS_CLEAR = on_white(COLOURS, np.where(INDICES == 1, 0, 255))
CLEAR_GREY = np.where(grey(GREY) == GREY[3, 4], 255, grey(GREY))
FIRST_IS_CLEAR = np.where((RGB == RGB[3, 4]).all(2, keepdims=True), 255, RGB)
OF_ALPHAS = np.array([0, 128, 255, 255])[INDICES]
CMYK = np.dstack([RGB, GREY // 3])
OF_CMYK = (255.0 - CMYK[..., :3]) * (255.0 - CMYK[..., 3:]) / 255


Case = tuple[str, bytes, NDArray[Any], float]
"""An ending, a file, its pixels, and by how many of 255 steps they may be off: 0 where nothing is rounded."""


def cases() -> dict[str, Case]:
    twelve = (GREY.astype(np.uint32) * 4095 // 255).reshape(-1, 2)
    pairs = (twelve[:, 0] << 12 | twelve[:, 1]).astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()
    last = (WIDTH - 1, HEIGHT - 1)
    assert GREY[0, 0] == 0 and GREY[last[::-1]] == 255
    floats = GREY.astype(np.float32)
    found: dict[str, Case] = {
        "PNG 1": (".png", saved(BITS, "1", "PNG"), grey(BITS * 255), 0),
        "PNG 1 clear": (".png", saved(BITS, "1", "PNG", transparency=0), grey(np.full_like(GREY, 255)), 0),
        "PNG L clear": (".png", saved(GREY, "L", "PNG", transparency=int(GREY[3, 4])), CLEAR_GREY, 0),
        "PNG LA": (".png", saved(LA, "LA", "PNG"), on_white(grey(GREY), ALPHA), 0.5),
        "PNG P": (".png", saved(INDICES, "P", "PNG"), COLOURS, 0),
        "PNG P clear": (".png", saved(INDICES, "P", "PNG", transparency=1), ONE_IS_CLEAR, 0),
        "PNG P alphas": (
            ".png",
            saved(INDICES, "P", "PNG", transparency=bytes([0, 128, 255, 255])),
            on_white(COLOURS, OF_ALPHAS),
            0.5,
        ),
        "PNG RGB": (".png", saved(RGB, "RGB", "PNG"), RGB, 0),
        "PNG RGB clear": (".png", saved(RGB, "RGB", "PNG", transparency=(*RGB[3, 4].tolist(),)), FIRST_IS_CLEAR, 0),
        "PNG RGBA": (".png", saved(RGBA, "RGBA", "PNG"), on_white(RGB, ALPHA), 0.5),
        "PNG I;16": (".png", saved(WIDE, "I;16", "PNG"), grey(GREY), 0),
        "PNG I;16 dark": (".png", saved(GREY.astype(np.uint16), "I;16", "PNG"), grey(GREY / 257), 0.5),
        "PNG I;16 clear": (".png", saved(WIDE, "I;16", "PNG", transparency=int(WIDE[3, 4])), CLEAR_GREY, 0),
        "APNG": (".png", saved(RGB, "RGB", "PNG", save_all=True, append_images=[Image.new("RGB", last)]), RGB, 0),
        "JPEG RGB": (".jpg", saved(RGB, "RGB", "JPEG", quality=98, subsampling=0), RGB, 8),
        "JPEG CMYK": (".jpg", saved(CMYK, "CMYK", "JPEG", quality=98, subsampling=0), OF_CMYK, 8),
        "JPEG turned": (".jpg", turned("JPEG", quality=98, subsampling=0), RGB, 8),
        "TIFF RGB": (".tif", saved(RGB, "RGB", "TIFF"), RGB, 0),
        "TIFF I;16": (".tif", tiff(WIDE), grey(GREY), 0),
        "TIFF I;16B": (".tif", tiff(WIDE.astype(">u2")), grey(GREY), 0),
        "TIFF I;16 zero is white": (".tif", tiff(WIDE, white_is_zero=True), grey(255 - GREY), 0),
        "TIFF 12 bits": (".tif", tiff(WIDE, pairs, bits=12), grey(GREY), 0.5),
        "TIFF I signed 16 bits": (".tif", tiff((WIDE // 2).astype("<i2")), grey(GREY / 2), 0.5),
        "TIFF I": (".tif", tiff(DEEP), grey(GREY), 0),
        "TIFF I below zero": (".tif", tiff(np.where(ACROSS < 10, DEEP, -DEEP)), grey(GREY * (ACROSS < 10)), 0),
        "TIFF I of 32 bits": (".tif", tiff(DEEP * 256), grey(GREY), 0),
        "TIFF I unsigned": (".tif", tiff(GREY.astype(np.uint32) * 0x01010101), grey(GREY), 0),
        "TIFF F of 1": (".tif", tiff(floats / 255), grey(GREY), 0),
        "TIFF F of 255": (".tif", tiff(floats), grey(GREY), 0),
        "TIFF F of 65535": (".tif", tiff(floats * 128), grey(floats * 128 / 257), 0.5),
        "TIFF F of more": (".tif", tiff(floats * 1e30), grey(GREY), 0),
        "TIFF F not finite": (
            ".tif",
            tiff(
                np.select([ACROSS < 5, ACROSS < 10, ACROSS < 15], [np.inf, -np.inf, np.nan], floats / 255).astype(
                    np.float32
                )
            ),
            grey(np.where(ACROSS < 5, 255, np.where(ACROSS < 15, 0, GREY))),
            0,
        ),
        "GIF P clear": (".gif", saved(INDICES, "P", "GIF", transparency=1), ONE_IS_CLEAR, 0),
        "GIF frames": (
            ".gif",
            saved(INDICES, "P", "GIF", save_all=True, append_images=[Image.new("L", last)]),
            COLOURS,
            0,
        ),
        "BMP RGB": (".bmp", saved(RGB, "RGB", "BMP"), RGB, 0),
        "PGM 16 bits": (".pgm", b"P5 20 12 65535\n" + WIDE.astype(">u2").tobytes(), grey(GREY), 0),
        "PPM": (".ppm", saved(RGB, "RGB", "PPM"), RGB, 0),
        "PFM": (".pfm", b"Pf 20 12 -1.0\n" + (floats / 255)[::-1].tobytes(), grey(GREY), 0),
        "ICO": (".ico", saved(RGBA, "RGBA", "ICO", sizes=[(WIDTH, HEIGHT)]), on_white(RGB, ALPHA), 0.5),
        "TGA": (".tga", saved(RGBA, "RGBA", "TGA"), on_white(RGB, ALPHA), 0.5),
        "SGI": (".sgi", saved(RGB, "RGB", "SGI"), RGB, 0),
        "PCX": (".pcx", saved(RGB, "RGB", "PCX"), RGB, 0),
        "DDS": (".dds", saved(RGBA, "RGBA", "DDS"), on_white(RGB, ALPHA), 0.5),
    }
    if int(PIL.__version__.split(".")[0]) >= 13:  # older ones cannot read it
        found |= {
            "TGA P alphas": (
                ".tga",
                struct.pack("<BBBHHBHHHHBB", 0, 1, 1, 0, 4, 32, 0, 0, WIDTH, HEIGHT, 8, 0x28)
                + np.c_[PALETTE[:, ::-1], [0, 128, 255, 255]].astype(np.uint8).tobytes()
                + INDICES.tobytes(),
                on_white(COLOURS, OF_ALPHAS),
                0.5,
            ),
        }
    if features.check("webp"):
        found |= {
            "WEBP RGBA": (".webp", saved(RGBA, "RGBA", "WEBP", lossless=True, exact=True), on_white(RGB, ALPHA), 0.5),
        }
    if features.check("jpg_2000"):
        found |= {
            "JPEG2000 I;16": (".jp2", saved(WIDE, "I;16", "JPEG2000"), grey(GREY), 0),
        }
    if "AVIF" in Image.SAVE:
        found |= {
            "AVIF turned": (".avif", turned("AVIF", quality=98, subsampling="4:4:4"), RGB, 12),
        }
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_pixels_and_names(name: str, tmp_path: Path) -> None:
    """What is read of a file is the same under any name, but for TGA, which has no mark of its own."""
    ending, contents, expected, off = CASES[name]
    names = [f"a{ending.upper()}", "b", "c.txt"]
    for file in names:
        (tmp_path / file).write_bytes(contents)
    count = 1 if ending == ".tga" else 3
    assert pictures_below(tmp_path) == (names[:count], names[count:])
    for file in names[:count]:
        read = read_picture(tmp_path / file)
        assert (type(read), read.mode, read.size) == (Image.Image, "RGB", (WIDTH, HEIGHT))
        assert np.abs(np.asarray(read, float) - expected).max() <= off


def test_what_is_left_out(tmp_path: Path) -> None:
    others = {
        "captions.tsv": b"a.jpg\tof something\n",
        "drawing": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
        "empty": b"",
        "features.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
        "film.mpg": b"\0\0\1\xb3" + b"\x14\x00\x0c" * 40,
        "head.h": b"#define WIDTH 5\n",
        "names.json": b'{"a": 1}',
        "notes": b"BMW and P6 are names of things\n",
        "paper.pdf": b"%PDF-1.7\n",
        "numbers": struct.pack("<10i", 40, 5, 5, 1 << 16 | 8, 0, 0, 0, 0, 0, 0),
        "pickled.pth": b"\x80\x02}q\x00.",
    }
    for name, contents in others.items():
        (tmp_path / name).write_bytes(contents)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=f"{tmp_path}: no pictures in it"):
        pictures_below(tmp_path)
    (tmp_path / "of" / "a").mkdir(parents=True)
    whole = CASES["PNG RGB"][1]
    for name, contents in (("of/a/whole", whole), ("of/cut", whole[:-40]), ("broken.webp", b"no picture")):
        (tmp_path / name).write_bytes(contents)
    for name in (".hidden", "of/.hidden.png"):
        (tmp_path / name).write_bytes(whole)
    expected = ["broken.webp", "of/a/whole", "of/cut"], sorted([*others, "gone", "pipe"])
    assert pictures_below(tmp_path) == expected
    for name in ("broken.webp", "of/cut", "drawing"):
        with pytest.raises(ValueError, match=f"{name}: not a readable image"):
            read_picture(tmp_path / name)
    assert find_pictures(tmp_path, ["of/a/whole", "cut"]) == [tmp_path / "of/a/whole", tmp_path / "of/cut"]


def test_usual_endings_are_listed_unopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def begun(file: BinaryIO, ending: str) -> bool:
        opened.append(Path(file.name).name)
        return True

    monkeypatch.setattr(pictures, "_begun", begun)
    for name in ("a.jpg", "b.TIF", "c"):
        (tmp_path / name).touch()
    assert pictures_below(tmp_path) == (["a.jpg", "b.TIF", "c"], [])
    assert opened == ["c"]


def test_bombs_are_refused(tmp_path: Path) -> None:
    claimed = bytearray(CASES["PNG RGB"][1])
    claimed[16:24] = struct.pack(">II", 20_000, 20_000)
    claimed[29:33] = struct.pack(">I", zlib.crc32(claimed[12:29]))
    (tmp_path / "large").write_bytes(claimed)
    assert pictures_below(tmp_path) == (["large"], [])
    for read in (read_picture, check_picture):
        with pytest.raises(ValueError, match=rf"large: .*\(400,000,000 pixels, more than MOST_PIXELS, {MOST_PIXELS:,}"):
            read(tmp_path / "large")


@pytest.mark.parametrize("name", ["PNG RGB", "TIFF RGB", "JPEG RGB", "PNG RGBA"])
def test_large_pictures_are_read_without_a_warning(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow warns of half as many pixels as it refuses."""
    (tmp_path / "a").write_bytes(CASES[name][1])
    before = list(warnings.filters)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 2 * 150)
    with pytest.warns(Image.DecompressionBombWarning), Image.open(tmp_path / "a"):
        pass
    read_picture(tmp_path / "a")
    assert warnings.filters == before and Image.MAX_IMAGE_PIXELS == 150
