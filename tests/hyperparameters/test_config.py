"""Hyper-parameter classes: what they take, and JSON there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossret.hyperparameters.config import Config


@dataclass(frozen=True)
class Example(Config):
    size: int
    rate: float = 0.5
    kind: Literal["one", "two"] = "one"
    flag: bool = True
    limit: int | None = None
    places: tuple[int, ...] = ()


@given(
    st.builds(
        Example,
        size=st.integers(),
        rate=st.floats(allow_nan=False, allow_infinity=False),
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
        ({"size": 1, "rate": 10**400}, ValueError, "rate must be less than 1e308"),
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
