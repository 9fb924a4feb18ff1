"""Text of others: whether UTF-8 can hold it, and what is shown of it, whatever it holds and however long it is."""

from __future__ import annotations

import re

LONGEST_SHOWN = 200  # characters of a name, a value or a caption
_CUT = "..."
_MOST_READ = 10**5  # characters of a message, of which far fewer are printed
# Text quoted as Python quotes; the apostrophe of a word begins and ends nothing.
_QUOTED = re.compile(r"""(?<!\w)b?(['"])(?:(?!\1)[^\\]|\\.){200,}\1(?!\w)""")
_WORD = re.compile(r"\S{201,}")
# Characters that a terminal obeys, that end a line, or that turn the direction of the text after them.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text: it has no lone halves of surrogate pairs, as Python has them of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    r"""What can be printed of a text: control characters as \x1b, halves of surrogate pairs as \ud800, and as \xff
    where they stand for a byte."""
    # How Python decodes bytes of arguments and of names of files that are not UTF-8 (PEP 383).
    bytes_shown = re.sub("[\udc80-\udcff]", lambda half: rf"\x{ord(half[0]) - 0xDC00:02x}", text)
    controls_shown = _OBEYED.sub(lambda control: control[0].encode("unicode_escape").decode(), bytes_shown)
    return controls_shown.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, longest: int = LONGEST_SHOWN) -> str:
    """The text, or its beginning and its end, which tells a file's name."""
    if len(text) <= longest:
        return text
    end = (longest - len(_CUT)) // 2
    return text[: longest - len(_CUT) - end] + _CUT + text[-end:]


def printable(message: str) -> str:
    """A message as it is printed, whatever of others it holds: names of files, values of options, parts of files.

    It is ``escaped``, and what is quoted or has no space in it is cut at 200 characters, so that the words around it
    are read.
    """
    line = escaped(shortened(message, _MOST_READ))
    for part in (_QUOTED, _WORD):
        line = part.sub(lambda found: shortened(found[0]), line)
    return line
