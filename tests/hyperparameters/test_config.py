"""Hyper-parameter classes: what they take, and JSON there and back."""

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


@given(
    st.builds(
        Example,
        size=st.integers(),
        rate=st.floats(-(2**24), 2**24),
        kind=st.sampled_from(["one", "two"]),
        flag=st.booleans(),
        limit=st.none() | st.integers(),
        places=st.lists(st.integers()).map(tuple),
    )
)
def test_json_there_and_back(example: Example) -> None:
    assert Example.from_json(example.to_json()) == example


def test_a_list_serves_as_a_tuple() -> None:
    example = Example.from_json('{"size": 1, "places": [3, 1]}')
    assert example.places == (3, 1)
    assert hash(example) == hash(Example(size=1, places=(3, 1)))


def test_a_whole_number_serves_as_a_float() -> None:
    example = Example(size=1, rate=2)
    assert type(example.rate) is float
    assert example == Example.from_json('{"size": 1, "rate": 2}')


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"size": 1.0}, TypeError, "size must be int, not 1.0"),
        ({"size": True}, TypeError, "size must be int, not True"),
        ({"size": 1, "rate": True}, TypeError, "rate must be a number, not True"),
        ({"size": 1, "rate": float("nan")}, ValueError, "rate must be finite, not nan"),
        ({"size": 1, "rate": float("inf")}, ValueError, "rate must be finite, not inf"),
        ({"size": 1, "rate": 1e39}, ValueError, r"rate must be at most 16777216, not 1e\+39"),
        ({"size": 1, "rate": -1e308}, ValueError, r"rate must be at least -16777216, not -1e\+308"),
        ({"size": 1, "rate": 2**24 + 1}, ValueError, "rate must be at most 16777216, not 16777217"),
        ({"size": 1, "rate": 10**5000}, ValueError, "rate must be at most 16777216, not a whole number beyond 1e308"),
        ({"size": 1, "norm": 1e39}, ValueError, r"norm must be at most 3.4028235e\+38, not 1e\+39"),
        ({"size": 1, "steps": 10**5000}, ValueError, r"steps must be at most 9.0071993e\+15, not a whole number bey"),
        ({"size": 1, "kind": "three"}, ValueError, "kind must be one of one, two, not 'three'"),
        ({"size": 1, "flag": 1}, TypeError, "flag must be bool, not 1"),
        ({"size": 1, "limit": "all"}, TypeError, "limit must be int, not 'all'"),
        ({"size": 1, "places": 3}, TypeError, "places must be whole numbers, not 3"),
        ({"size": 1, "places": (1, 2.0)}, TypeError, r"places must be whole numbers, not \(1, 2.0\)"),
        ({"size": 1, "places": (True,)}, TypeError, r"places must be whole numbers, not \(True,\)"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Example(**fields)


def test_a_number_that_is_positive_is_so_in_float32() -> None:
    check_positive(Example(size=1, rate=2**-100), "size", "rate")
    for rate, message in ((0.0, "greater than 0, not 0.0"), (-1.0, "greater than 0"), (1e-38, "at least 7.9e-31, not")):
        with pytest.raises(ValueError, match=f"rate must be {message}"):
            check_positive(Example(size=1, rate=rate), "rate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "Example: not a JSON object, but list"),
        ('{"size": 1, "sise": 2}', "Example has no field 'sise'"),
        ('{"rate": 1}', "Example lacks the field 'size'"),
        ('{"size": "1"}', "size must be int, not '1'"),
        ('{"size": 1, "rate": NaN}', "rate must be finite"),
        ('{"size": 1, "kind": []}', "kind must be one of"),
    ],
)
def test_json_that_does_not_fit_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Example.from_json(text)
