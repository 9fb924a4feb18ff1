"""What is read of the words of scenes, rendered now or before their parts of speech were told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossret.data.scenes.grounding import read_grounding

ENTRY = {"words": ["a", "dog"], "named": [[1, [0, 20, 20, 40]]]}


def test_parts_of_speech_are_read_where_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "test_grounding.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (ENTRY, {**ENTRY, "pos": ["DET", "NOUN"]})))
    before, now = read_grounding(path)
    assert before.pos is None
    assert now.pos == ["DET", "NOUN"]
    assert before.words == now.words == ["a", "dog"]
    assert before.objects[1].tolist() == now.objects[1].tolist() == [0, 20, 20, 40]


@pytest.mark.parametrize("pos", ["DET NOUN", ["DET"], ["DET", "NOUN", "NOUN"], ["DET", 1], {}])
def test_malformed_parts_of_speech_are_named(tmp_path: Path, pos: object) -> None:
    path = tmp_path / "test_grounding.jsonl"
    path.write_text(json.dumps({**ENTRY, "pos": pos}))
    with pytest.raises(ValueError, match=r"test_grounding\.jsonl, line 1: 'pos' is not a list of tags, one for each"):
        read_grounding(path)
