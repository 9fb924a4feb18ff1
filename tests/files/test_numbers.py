"""Numbers as people type them, and what Python alone would take for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret.files.numbers import decimal_number, whole_number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_they_are_written(number: float) -> None:
    assert decimal_number(str(number)) == number


@pytest.mark.parametrize(("text", "number"), [("+3", 3.0), (".5", 0.5), ("5.", 5.0), ("1E-4", 1e-4), ("007", 7.0)])
def test_other_spellings_of_numbers(text: str, number: float) -> None:
    assert decimal_number(text) == number


@pytest.mark.parametrize(
    ("read", "message", "texts"),
    [
        (whole_number, "a whole number", ("1.0", "1e3", "1_0", " 1", "1\n", "٣", "", "-", "0x10", "true", "1" * 301)),
        (
            decimal_number,
            "a number",
            ("1_0", " 1.5", "٣.5", "", ".", "e5", "1,5", "nan", "inf", "0x1p3", "1e"),
        ),
        (decimal_number, "less than 1e308", ("1e999",)),
    ],
)
def test_what_is_no_number(read: Callable[[str], float], message: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f"^must be {message}, not '"):
            read(text)
