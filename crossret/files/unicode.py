"""Text that UTF-8 cannot hold: lone halves of surrogate pairs, as Python has them of bytes that are not UTF-8."""

from __future__ import annotations

import re


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    r"""What can be printed of a text: halves of surrogate pairs as \ud800, and as \xff where they stand for a byte."""
    # How Python decodes bytes of arguments and of names of files that are not UTF-8 (PEP 383).
    bytes_shown = re.sub("[\udc80-\udcff]", lambda half: rf"\x{ord(half[0]) - 0xDC00:02x}", text)
    return bytes_shown.encode("utf-8", "backslashreplace").decode()
