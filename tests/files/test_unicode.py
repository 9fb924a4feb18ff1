"""Text that UTF-8 cannot hold is told, and shown as what can be printed."""

from __future__ import annotations

import os

import pytest

from crossret.files.unicode import escaped, is_unicode


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a \ud800 dog", r"a \ud800 dog"),
        ("\udfff", r"\udfff"),
        (os.fsdecode("ä".encode() + b"/\xff\x80"), r"ä/\xff\x80"),
    ],
)
def test_halves_of_surrogate_pairs_are_escaped(text: str, shown: str) -> None:
    assert not is_unicode(text)
    assert escaped(text) == shown


@pytest.mark.parametrize("text", ["", "a dog", "ä\U0001f436\\ud800"])
def test_other_text_stays(text: str) -> None:
    assert is_unicode(text)
    assert escaped(text) == text
