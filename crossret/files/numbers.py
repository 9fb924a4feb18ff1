"""Numbers that people type: their digits and nothing else that Python would take for a number."""

from __future__ import annotations

import math
import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,300}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def whole_number(text: str) -> int:
    """The number of a text such as "12" or "-3"; "1.0", "1_0", " 1" and digits of other scripts are none.

    Raises:
        ValueError: the text is no whole number, or one of more than 300 digits.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"must be a whole number, not {text!r}")
    return int(text)


def decimal_number(text: str) -> float:
    """The number of a text such as "12", "0.5", "1e-4" or ".5"; no underscores, spaces or digits of other scripts.

    Raises:
        ValueError: the text is no number, or not one that is finite as a float.
    """
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"must be a number, not {text!r}")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"must be less than 1e308, not {text!r}")
    return number
