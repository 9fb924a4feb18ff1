"""Tokenizer and vocabulary: words to numbers and back, and files that are not vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.data import Vocabulary, tokenize
from crossret.data.vocabulary import word_counts

CAPTIONS = ["a red star", "a red ring", "a blue ring .", "a small star"]
words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A Red star.", ["a", "red", "star", "."]),
        ("two dogs, one ball!", ["two", "dogs", ",", "one", "ball", "!"]),
        ("the dog's ball isn't mid-air", ["the", "dog", "'s", "ball", "is", "n't", "mid-air"]),
        ("they can't say 'no'", ["they", "ca", "n't", "say", "'", "no", "'"]),
        (
            "you'll, we've, they'd, he's, I'm",
            ["you", "'ll", ",", "we", "'ve", ",", "they", "'d", ",", "he", "'s", ",", "i", "'m"],
        ),
        ("the dogs' t-shirt's", ["the", "dogs", "'", "t-shirt", "'s"]),
        ("a don't-care attitude", ["a", "don't-care", "attitude"]),
        ("it cannot", ["it", "can", "not"]),
        ("gonna gotta wanna gimme lemme", ["gon", "na", "got", "ta", "wan", "na", "gim", "me", "lem", "me"]),
        ("'tis", ["'t", "is"]),
        ("3.5 of 10,000 at 10:30", ["3.5", "of", "10,000", "at", "10:30"]),
        ("in 2010, at 10: 3.", ["in", "2010", ",", "at", "10", ":", "3", "."]),
        ("red,blue:green", ["red", ",", "blue", ":", "green"]),
        ("$3.50, 50% & #1", ["$", "3.50", ",", "50", "%", "&", "#", "1"]),
        ("man/woman black-and-white - mid-", ["man/woman", "black-and-white", "-", "mid-"]),
        ("wait...what -- a--b", ["wait", "...", "what", "--", "a", "--", "b"]),
        ('a "red" one', ["a", "``", "red", "''", "one"]),
        ('"stop" ("go")', ["``", "stop", "''", "(", "``", "go", "''", ")"]),
        ("a ``red'' one", ["a", "``", "red", "''", "one"]),
        ("a \u201cred\u201d dog\u2019s", ["a", "\u201c", "red", "\u201d", "dog", "\u2019", "s"]),
    ],
)
def test_tokenize(caption: str, expected: list[str]) -> None:
    assert tokenize(caption) == expected


@settings(max_examples=50)
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\"'"))
    | st.text("can not't.,:-/s1 ", max_size=40).filter(lambda caption: "''" not in caption)
)
def test_tokenize_loses_nothing_but_white_space_and_case(caption: str) -> None:
    """Quotes apart, which change."""
    assert "".join(tokenize(caption)) == "".join(caption.lower().split())


def test_build_keeps_frequent_words_the_most_frequent_first() -> None:
    assert Vocabulary.build(CAPTIONS, min_count=2).idx2word[4:] == ["a", "red", "ring", "star"]
    assert len(Vocabulary.build(CAPTIONS, min_count=1)) == 4 + 7
    assert len(Vocabulary.build(CAPTIONS)) == 4 + 1  # by default, four times


def test_encode_marks_start_end_and_unknown_words() -> None:
    vocabulary = Vocabulary(["a", "star"])
    assert vocabulary.encode("A purple star") == [1, 4, 3, 5, 2]
    assert vocabulary.decode([1, 4, 3, 5, 2]) == ["<start>", "a", "<unk>", "star", "<end>"]


@settings(max_examples=15)
@given(st.lists(words, max_size=10, unique=True))
def test_encode_decode_and_save_load_round_trip(tmp_path_factory: pytest.TempPathFactory, drawn: list[str]) -> None:
    tokens = list(dict.fromkeys(token for word in drawn for token in tokenize(word)))
    vocabulary = Vocabulary(tokens)
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.json"
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded.idx2word == vocabulary.idx2word
    assert loaded.word2idx == vocabulary.word2idx
    for token in tokens:
        assert loaded.decode(loaded.encode(token)) == ["<start>", *tokenize(token), "<end>"]


def test_the_first_words_alone_are_counted() -> None:
    captions = ["a red red star", "a star"]
    assert word_counts(captions) == {"a": 2, "red": 2, "star": 2}
    assert word_counts(captions, 2) == {"a": 2, "red": 1, "star": 1}


def test_the_file_is_the_published_format(tmp_path: Path) -> None:
    Vocabulary(["star"]).save(tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_text()) == {
        "word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "star": 4},
        "idx2word": {"0": "<pad>", "1": "<start>", "2": "<end>", "3": "<unk>", "4": "star"},
        "idx": 5,
    }


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="min_count"):
        Vocabulary.build(CAPTIONS, min_count=0)
    with pytest.raises(ValueError, match="'star' occurs more than once"):
        Vocabulary(["star", "star"])
    with pytest.raises(ValueError, match="-1 is not in the vocabulary"):
        Vocabulary().decode([-1])


def _contents(**changes: Any) -> dict[str, Any]:
    special = ["<pad>", "<start>", "<end>", "<unk>", "star"]
    contents: dict[str, Any] = {
        "word2idx": {word: number for number, word in enumerate(special)},
        "idx2word": {str(number): word for number, word in enumerate(special)},
        "idx": 5,
    }
    return contents | changes


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"{", "not JSON"),
        ({"idx": 3}, "no 'word2idx' object"),
        (_contents(word2idx={"<pad>": "0"}), "must be an integer"),
        (_contents(word2idx={"<pad>": 0, "<start>": 1, "<end>": 2, "star": 3, "<unk>": 4}), "words 0 to 3"),
        (_contents(idx2word={"0": "<pad>"}), "not the inverse"),
        (_contents(idx=7), "'idx'"),
    ],
)
def test_a_file_that_is_not_a_vocabulary(tmp_path: Path, contents: Any, message: str) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(contents if isinstance(contents, bytes) else json.dumps(contents).encode())
    with pytest.raises(ValueError, match=message) as caught:
        Vocabulary.load(path)
    assert str(path) in str(caught.value)
