"""Reading JSON that others wrote: whatever is wrong with it is one ValueError that names the place."""

from __future__ import annotations

import json
import os
from typing import Any

# Any whole number of so many digits is also a float; Python itself reads 4300 digits in quadratic time.
_MOST_DIGITS = 300


def parse_json(text: str | bytes, place: str | os.PathLike[str]) -> Any:
    """The value of a JSON text; bytes are UTF-8.

    Args:
        text: what to parse.
        place: the file, or the part of one, that errors begin with.

    Raises:
        ValueError: not JSON, nested too deeply, a whole number of more than 300 digits, or half of a surrogate pair
            in a string, which no UTF-8 file can hold.
    """
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text, parse_int=_whole_number)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"{place}: not JSON (nested too deeply)") from None
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"{place}: not JSON (its text is not Unicode: {error.reason})") from None
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error})") from error
    return value


def parse_json_object(text: str | bytes, place: str | os.PathLike[str]) -> dict[str, Any]:
    """As ``parse_json``, of a text that must be a JSON object.

    Raises:
        ValueError: as ``parse_json``, or the value is no object.
    """
    value = parse_json(text, place)
    if not isinstance(value, dict):
        raise ValueError(f"{place}: not a JSON object, but {type(value).__name__}")
    return value


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)
