"""Text that UTF-8 cannot hold is told, and shown as what can be printed."""

from __future__ import annotations

import os

import pytest

from crossret.files.unicode import escaped, is_unicode, printable, shortened


@pytest.mark.parametrize(
    ("text", "shown", "unicode"),
    [
        ("a \ud800 dog", r"a \ud800 dog", False),
        (os.fsdecode("ä".encode() + b"/\xff\x80"), r"ä/\xff\x80", False),
        ("a\r\n\tb\0\x7f\x9b", r"a\r\n\tb\x00\x7f\x9b", True),
        ("\u202egpj.exe\u2066\u2028", r"\u202egpj.exe\u2066\u2028", True),
    ],
)
def test_surrogates_and_what_a_terminal_obeys_are_escaped(text: str, shown: str, unicode: bool) -> None:
    assert is_unicode(text) is unicode
    assert escaped(text) == shown


def test_a_long_text_is_its_beginning_and_its_end() -> None:
    assert shortened("a" * 200) == "a" * 200
    assert shortened("a" * 500 + "b" * 500) == "a" * 99 + "..." + "b" * 98
    assert len(shortened("ab" * 500, 77)) == 77


def test_of_a_message_what_is_quoted_and_what_has_no_spaces_is_cut() -> None:
    long, path = "x y " * 400, "/data/" + "d" * 1000 + "/test_ims.npy"
    line = printable(f"{path}: the model's words are {long!r} and {long.encode()!r}, not {path!r}, what isn't it")
    for part in ("/test_ims.npy: the model's words are 'x y x", "y ' and b'x y", "/test_ims.npy', what isn't it"):
        assert part in line
    assert len(line) < 900
    assert max(len(word) for word in line.split()) <= 200
    assert len(printable("x" * 10**8)) == 200
    assert printable("the model's word " * 100) == "the model's word " * 100
