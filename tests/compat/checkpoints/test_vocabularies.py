"""Vocabularies of published code: JSON, and VSE++'s pickles as Python 2 and 3 write them; nothing in them is run."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from crossret.compat.checkpoints import read_vocabulary
from tests.compat.checkpoints.published import VOCABULARY


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An object of a class that pickles as that of VSE++'s vocab.py, which is not there when it is read."""
    module = ModuleType("vocab")
    module.Vocabulary = type("Vocabulary", (), {"__module__": "vocab"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vocab", module)
    made = module.Vocabulary()
    made.word2idx = dict(VOCABULARY.word2idx)
    made.idx2word = dict(enumerate(VOCABULARY.idx2word))
    made.idx = len(VOCABULARY)
    return made


def written(saved: object, path: Path, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(saved, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_of_vocab_py(tmp_path: Path, words: Any, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    path = written(words, tmp_path / "coco_vocab.pkl", protocol)
    monkeypatch.delitem(sys.modules, "vocab")
    assert read_vocabulary(path).idx2word == VOCABULARY.idx2word
    assert "vocab" not in sys.modules


def test_a_pickle_of_python_2_that_ran_vocab_py_itself(tmp_path: Path) -> None:
    """Protocol 2, of the class of __main__; the special words are strings of bytes there, the others Unicode."""

    def text(word: str) -> bytes:
        raw = word.encode()
        if word.startswith("<"):
            return b"U" + bytes([len(raw)]) + raw
        return b"X" + len(raw).to_bytes(4, "little") + raw

    numbers = [b"K" + bytes([number]) for number in range(len(VOCABULARY))]
    spelt = [text(word) for word in VOCABULARY.idx2word]
    word2idx = b"}(" + b"".join(word + number for word, number in zip(spelt, numbers, strict=True)) + b"u"
    idx2word = b"}(" + b"".join(number + word for word, number in zip(spelt, numbers, strict=True)) + b"u"
    state = b"}(U\x08word2idx" + word2idx + b"U\x08idx2word" + idx2word + b"U\x03idx" + b"K\x07" + b"u"
    path = tmp_path / "f30k_vocab.pkl"
    path.write_bytes(b"\x80\x02c__main__\nVocabulary\n)\x81" + state + b"b.")
    assert read_vocabulary(path).idx2word == VOCABULARY.idx2word


class Program:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("was-here"),)


@pytest.mark.parametrize("inside", [False, True])
def test_what_would_run_is_refused(tmp_path: Path, words: Any, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if inside:
        words.word2idx["dog"] = Program()
    path = written(words if inside else Program(), tmp_path / "x.pkl")
    with pytest.raises(
        ValueError, match=r"x.pkl: not a readable vocabulary \(.* is no part of a vocabulary\); nothing"
    ):
        read_vocabulary(path)
    assert not Path("was-here").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word2idx": None}, "not a vocabulary: no 'word2idx' object"),
        ({"word2idx": {"<pad>": 0, "<end>": 2}}, "numbers of word2idx must be 0 to 1, each once"),
        ({"idx2word": [1]}, "'idx2word' is not the inverse"),
        (pickle.dumps([1]), "not a vocabulary, but a pickled list"),
        (b"\x80\x04\x95", "not a readable vocabulary"),
        (b"", "not JSON"),
    ],
)
def test_files_that_are_malformed_are_told(
    tmp_path: Path, words: Any, changes: dict[str, Any] | bytes, message: str
) -> None:
    path = tmp_path / "x.pkl"
    if isinstance(changes, bytes):
        path.write_bytes(changes)
    else:
        vars(words).update(changes)
        written(words, path)
    with pytest.raises(ValueError, match=rf"x.pkl: .*{message}"):
        read_vocabulary(path)
