"""Numbers as people type them, and what Python alone would take for one."""

from __future__ import annotations

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


@pytest.mark.parametrize("text", ["1.0", "1e3", "1_0", " 1", "1\n", "٣", "", "-", "0x10", "true", "1" * 301])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a whole number, not '"):
        whole_number(text)


@pytest.mark.parametrize("text", ["1_0", "0.1_5", " 1.5", "٣.5", "", ".", "e5", "1,5", "nan", "inf", "0x1p3", "1e"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a number, not '"):
        decimal_number(text)


def test_a_number_beyond_floats_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^must be less than 1e308, not '1e999'$"):
        decimal_number("1e999")
