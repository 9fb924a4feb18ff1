"""JSON from strangers: every way to be wrong is one ValueError that names the place."""

from __future__ import annotations

import pytest

from crossret.files.json import parse_json, parse_json_object


def test_what_is_json_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, "ü\\ud83d\\ude00", null]}', "here") == {"a": [1, 2.5, "ü😀", None]}
    assert parse_json("ü".join('""').encode(), "here") == "ü"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[" * 200_000, "nested too deeply"),
        ('[{"a": 1, "b": {}, "a": 1}]', "two values of the name 'a'"),
        (b'"\xff"', "invalid start byte"),
    ],
)
def test_what_is_not_json_names_the_place(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^a/file.json: not JSON \(.*{message}"):
        parse_json(text, "a/file.json")


def test_an_object_is_asked_for() -> None:
    assert parse_json_object("{}", "here") == {}
    with pytest.raises(ValueError, match=r"^a/file.json: not a JSON object, but list$"):
        parse_json_object("[]", "a/file.json")
