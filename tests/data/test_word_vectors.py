"""Word vectors: text, gzip and gensim's pickles (built here without gensim); what is malformed, and what is hostile."""

from __future__ import annotations

import gzip
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from crossret.data import Vocabulary
from crossret.data.word_vectors import read_word_vectors, start_from_word_vectors

GLOVE = b"the 1 2 3\n. . 4 5 6\ncat -1e-1 .5 7\nthe 9 9 9\nDog 1 1 1\n"
WORDS = ["<pad>", "cat", "dog", "the", "absent"]
EXPECTED = np.array([[-0.1, 0.5, 7], [1, 2, 3]], np.float32)


@pytest.mark.parametrize("header", [b"", b"5 3\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_text(tmp_path: Path, header: bytes, packed: bool) -> None:
    contents = header + GLOVE.replace(b"3\n", b"3 \r\n")
    (tmp_path / "v").write_bytes(gzip.compress(contents) if packed else contents)
    vectors, found = read_word_vectors(tmp_path / "v", WORDS)
    assert vectors.dtype == np.float32
    assert found.tolist() == [1, 3]
    np.testing.assert_array_equal(vectors, EXPECTED)


@pytest.mark.parametrize("end", [b"\n", b"\r\n \n\n"])
@pytest.mark.parametrize("header", [b"", b"5 3\n"])
def test_empty_lines_at_the_end_do_not_count(tmp_path: Path, header: bytes, end: bytes) -> None:
    (tmp_path / "v").write_bytes(header + GLOVE + end)
    vectors, found = read_word_vectors(tmp_path / "v", WORDS)
    assert found.tolist() == [1, 3]
    np.testing.assert_array_equal(vectors, EXPECTED)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", ": no word vectors in it"),
        (b"\n\n", ": no word vectors in it"),
        (b"the 1 2\n\n\ncat 1 2\n", ", line 2: empty, but not the end"),
        (b"\nthe 1 2\n", ", line 1: empty, but not the end"),
        (b"3 2\nthe 1 2\ncat 1 2\n\n", ": 2 words, but its first line promises 3"),
        (b"the\n", ", line 1: not a word and its numbers"),
        (b"the 1 2\ncat 1\n", ", line 2: 1 numbers, expected 2"),
        (b"the 1 2\ncat 1 x\n", ", line 2: could not convert"),
        (b"the 1 2\ncat 1 nan\n", ", line 2: not all numbers are finite"),
        (b"the 1 2\ncat 1 1e39\n", ", line 2: not all numbers are finite"),
        (b"3 2\nthe 1 2\ncat 1 2\n", ": 2 words, but its first line promises 3"),
        (b"2 0\nthe\n", ", line 1: promises vectors of no dimensions"),
        (b"the " + b"1" * 2**20, ", line 1: longer than any line"),
        (gzip.compress(GLOVE)[:-9], ": damaged gzip data"),
        (gzip.compress(pickle.dumps([1, 2])), ": a gzipped pickle"),
        (b"\x80", ": not a readable KeyedVectors file"),
        (pickle.dumps({"index_to_key": []}), ": not KeyedVectors of gensim 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # bytes of a gzip file have the time in them
)
def test_malformed_files(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "v").write_bytes(contents)
    with pytest.raises(ValueError, match=f"v{message}"):
        read_word_vectors(tmp_path / "v", WORDS)


@pytest.fixture
def keyed_vectors(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """A class that pickles as gensim's."""
    module = types.ModuleType("gensim.models.keyedvectors")
    kind = type("KeyedVectors", (), {"__module__": module.__name__})
    vars(module)["KeyedVectors"] = kind
    for name in ("gensim", "gensim.models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield kind


def save(path: Path, kind: type[Any], **attributes: Any) -> Path:
    saved = kind()
    vars(saved).update({"index_to_key": ["the", "cat"], "vectors": EXPECTED[::-1].copy(), **attributes})
    path.write_bytes(pickle.dumps(saved, protocol=4))
    return path


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_keyed_vectors(tmp_path: Path, keyed_vectors: type[Any], apart: bool, dtype: type[Any]) -> None:
    stored = EXPECTED[::-1].astype(dtype)
    extra = {"expandos": {"count": np.array([3, 4])}, "next_index": np.int64(2), "norms": None}
    path = save(tmp_path / "v", keyed_vectors, vectors=None if apart else stored, **extra)
    if apart:
        np.save(tmp_path / "v.vectors.npy", stored)
    vectors, found = read_word_vectors(path, WORDS)
    assert found.tolist() == [1, 3]
    np.testing.assert_allclose(vectors, EXPECTED, rtol=1e-3)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"index_to_key": None}, "no list index_to_key"),
        ({"index_to_key": ["the", 5]}, r"index_to_key\[1\] is no word"),
        ({"index_to_key": ["a", "b", "c"]}, "3 words, but 2 vectors"),
        ({"vectors": [1.0]}, "its vectors are no array"),
        ({"vectors": np.zeros((2, 3), np.int64)}, "no floating-point array"),
        ({"vectors": np.asfortranarray(np.ones((2, 3), np.float32))}, "no floating-point array in C order"),
        ({"vectors": np.zeros(3, np.float32)}, "must have 2 dimensions"),
        ({"vectors": np.array([[None], [None]])}, "no floating-point array"),
        ({"vectors": np.full((2, 3), np.nan, np.float32)}, "the vector of 'cat' is not finite"),
    ],
)
def test_malformed_keyed_vectors(
    tmp_path: Path, keyed_vectors: type[Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"v: .*{message}"):
        read_word_vectors(save(tmp_path / "v", keyed_vectors, **attributes), WORDS)


def test_a_missing_array_beside_the_pickle(tmp_path: Path, keyed_vectors: type[Any]) -> None:
    with pytest.raises(FileNotFoundError, match=r"v\.vectors\.npy"):
        read_word_vectors(save(tmp_path / "v", keyed_vectors, vectors=None), WORDS)


def test_a_pickle_is_not_executed(tmp_path: Path, keyed_vectors: type[Any]) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    with pytest.raises(ValueError, match=r"posix\.mkdir is no part of KeyedVectors"):
        read_word_vectors(save(tmp_path / "v", keyed_vectors, bomb=Bomb()), WORDS)
    assert not (tmp_path / "executed").exists()


def test_an_embedding_starts_from_them(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(GLOVE)
    vocabulary = Vocabulary(["cat", "dog", "the"])
    embedding = nn.Embedding(7, 3)
    before = embedding.weight.detach().clone()
    assert start_from_word_vectors(embedding, vocabulary, tmp_path / "v") == 2
    torch.testing.assert_close(embedding.weight[[4, 6]], torch.from_numpy(EXPECTED))
    assert torch.equal(embedding.weight[[0, 1, 2, 3, 5]], before[[0, 1, 2, 3, 5]])
    assert embedding.weight.requires_grad


def test_sizes_that_do_not_agree(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(GLOVE)
    with pytest.raises(ValueError, match="v: vectors have 3 dimensions, but word_dim is 4"):
        start_from_word_vectors(nn.Embedding(7, 4), Vocabulary(["cat", "dog", "the"]), tmp_path / "v")
    with pytest.raises(ValueError, match="embedding has 6 rows, but vocabulary 7 words"):
        start_from_word_vectors(nn.Embedding(6, 3), Vocabulary(["cat", "dog", "the"]), tmp_path / "v")
