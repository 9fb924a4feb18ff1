"""Classes of settings: what they take, and JSON there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret.hyperparameters.config import LARGEST_FLOAT32, Config, check_positive, option


@dataclass(frozen=True)
class Example(Config):
    size: int
    rate: float = 0.5
    kind: Literal["one", "two"] = "one"
    flag: bool = True
    limit: int | None = None
    places: tuple[int, ...] = ()
    norm: float = option(1e38, "help", most=LARGEST_FLOAT32)
    steps: int = option(2**53, "help")


EXAMPLES = st.builds(
    Example,
    size=st.integers(),
    rate=st.floats(-(2**24), 2**24) | st.integers(-(2**24), 2**24),  # a whole number serves as a float
    kind=st.sampled_from(["one", "two"]),
    flag=st.booleans(),
    limit=st.none() | st.integers(),
    places=st.lists(st.integers()) | st.lists(st.integers()).map(tuple),
)


@given(EXAMPLES)
def test_json_there_and_back(example: Example) -> None:
    assert Example.from_json(example.to_json()) == example
    assert (type(example.rate), type(example.places)) == (float, tuple)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"size": True}, TypeError, "size must be int, not True"),
        ({"size": 1, "rate": float("nan")}, ValueError, "rate must be finite, not nan"),
        ({"size": 1, "rate": 10**5000}, ValueError, "rate must be at most 16777216, not a whole number beyond 1e308"),
        ({"size": 1, "norm": 1e39}, ValueError, r"norm must be at most 3.4028235e\+38, not 1e\+39"),
        ({"size": 1, "kind": "three"}, ValueError, "kind must be one of one, two, not 'three'"),
        ({"size": 1, "limit": "all"}, TypeError, "limit must be int, not 'all'"),
        ({"size": 1, "places": (1, 2.0)}, TypeError, r"places must be whole numbers, not \(1, 2.0\)"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Example(**fields)


def test_a_number_that_is_positive_is_so_in_float32() -> None:
    check_positive(Example(size=1, rate=2**-100), "size", "rate")
    for rate, message in ((0.0, "greater than 0, not 0.0"), (1e-38, "at least 7.9e-31, not")):
        with pytest.raises(ValueError, match=f"rate must be {message}"):
            check_positive(Example(size=1, rate=rate), "rate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"size": 1, "sise": 2}', "Example has no field 'sise'"),
        ('{"rate": 1}', "Example lacks the field 'size'"),
        ('{"size": "1"}', "size must be int, not '1'"),
    ],
)
def test_json_that_does_not_fit_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Example.from_json(text)
