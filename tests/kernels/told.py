"""Tables of mistakes: a test of all calls in one that each raises its error, whose message has its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest


def told(
    call: Callable[..., object], cases: Mapping[str, Sequence[Any]], *functions: Callable[..., Any]
) -> Callable[..., None]:
    """A test of mistakes: cases have arguments of `call`, the error and its words; a function comes ahead of them."""
    calls = [
        pytest.param([*first, *case[:-2]], *case[-2:], id=" ".join([*(own.__name__ for own in first), name]))
        for first in ([(own,) for own in functions] or [()])
        for name, case in cases.items()
    ]

    @pytest.mark.parametrize(("given", "error", "message"), calls)
    def test(given: list[Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=re.escape(message)):
            call(*given)

    return test
