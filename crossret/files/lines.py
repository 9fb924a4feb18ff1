"""Lines of texts in UTF-8."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Iterable

from crossret.files.regular import LARGEST_LINES, read_regular


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a file without their ends, LF, CRLF or CR, and without a byte order mark; none of an empty file.

    Raises:
        OSError: the file cannot be read. ValueError: a line is not UTF-8; names the file, the line and the byte.
    """
    contents = read_regular(path, LARGEST_LINES).removeprefix(codecs.BOM_UTF8)
    try:
        text = contents.decode()
    except UnicodeDecodeError as error:
        line, start = contents.count(b"\n", 0, error.start) + 1, contents.rfind(b"\n", 0, error.start) + 1
        why = f"{error.reason} at byte {error.start - start}"
        raise ValueError(f"{os.fspath(path)}, line {line}: not UTF-8 ({why})") from error
    text = text if "\n" in text else text.replace("\r", "\n")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def digest(texts: Iterable[str]) -> str:
    """A fingerprint of texts in their order."""
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode("utf-8", "surrogateescape") + b"\0")
    return found.hexdigest()
