"""spaCy's parts of speech: of our words, and what is missing is said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from crossret.data.tagging import load_tagger


def test_without_spacy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match=r"^parts of speech need spaCy; .* pip install 'crossret\[pos\]'$"):
        load_tagger()


@pytest.fixture
def spacy() -> Any:
    return pytest.importorskip("spacy")


def save_model(spacy: Any, directory: Path) -> Path:
    """A model of rules, which needs no download."""
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("attribute_ruler")
    ruler.add([[{}]], {"POS": "X"})
    ruler.add([[{"LOWER": "dog"}]], {"POS": "NOUN"})
    ruler.add([[{"LOWER": "n't"}]], {"POS": "PART"})
    pipeline.to_disk(directory)
    return directory


def test_tags_are_of_our_words(spacy: Any, tmp_path: Path) -> None:
    tagger = load_tagger(str(save_model(spacy, tmp_path / "model")))
    captions = [["a", "mid-air", "dog"], ["n't", "''"], ["dog"]]
    assert list(tagger(captions)) == [["X", "X", "NOUN"], ["PART", "X"], ["NOUN"]]


@pytest.mark.parametrize("model", ["no_such_model", "."])
def test_a_model_that_is_not_there(spacy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^spaCy cannot load the model '{model}'; .* spacy download en_core_web_sm"):
        load_tagger(model)
