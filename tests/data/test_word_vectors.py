"""Word vectors: text, word2vec's binary form, gzip, gensim's pickles (built here without gensim), Skip-Thoughts' table.

What is malformed, and what is hostile.
"""

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


@pytest.mark.parametrize("header", [b"", b"5 3\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf5 3\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_text(tmp_path: Path, header: bytes, packed: bool) -> None:
    contents = header + GLOVE.replace(b"3\n", b"3 \r\n")
    (tmp_path / "v").write_bytes(gzip.compress(contents) if packed else contents)
    vectors, found = read_word_vectors(tmp_path / "v", WORDS)
    assert vectors.dtype == np.float32
    assert found.tolist() == [1, 3]
    np.testing.assert_array_equal(vectors, EXPECTED)


WORD2VEC = [
    ("the", [1, 2, 3]),
    ("</s>", [0, -0.0, 1e-20]),
    ("cat", [-0.1, 0.5, 7]),
    ("\u00fc", [9, 9, 9]),
    ("the", [4, 4, 4]),
]


def word2vec(end: bytes = b"", entries: Any = WORD2VEC, promised: int | None = None) -> bytes:
    header = f"{len(entries) if promised is None else promised} 3\n".encode()
    return header + b"".join(word.encode() + b" " + np.array(row, "<f4").tobytes() + end for word, row in entries)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_word2vec_s_binary_form(tmp_path: Path, end: bytes, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossret.data.word_vectors.word2vec._CHUNK", 7)  # so that every word straddles two
    monkeypatch.setattr("crossret.data.word_vectors.word2vec._LONGEST_WORD", 8)
    (tmp_path / "v").write_bytes(gzip.compress(word2vec(end)) if packed else word2vec(end))
    vectors, found = read_word_vectors(tmp_path / "v", WORDS)
    assert found.tolist() == [1, 3]
    np.testing.assert_array_equal(vectors, EXPECTED)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", ": no word vectors in it"),
        (b"the 1 2\n\n\ncat 1 2\n", ", line 2: empty, but not the end"),
        (b"the 1 2\ncat 1\n", ", line 2: 1 numbers, expected 2"),
        (b"the 1 2\ncat 1 x\n", ", line 2: could not convert"),
        (b"the 1 2\ncat 1 nan\n", ", line 2: not all numbers are finite"),
        (b"3 2\nthe 1 2\ncat 1 2\n", ": 2 words, but its first line promises 3"),
        (b"the " + b"1" * 2**20, ", line 1: longer than any line"),
        (gzip.compress(GLOVE)[:-9], ": damaged gzip data"),
        (gzip.compress(pickle.dumps([1, 2])), ": a gzipped pickle or array; save it uncompressed"),
        (b"\x80", ": not a readable KeyedVectors file"),
        (pickle.dumps({"index_to_key": []}), ": not KeyedVectors of gensim 4"),
        (word2vec()[:-1], r", word 5 of 5 \(byte 68\): the file ends in it"),
        (word2vec(promised=4), ": goes on at byte 68, behind the 4 words that it promises"),
        (word2vec(entries=[("the", [1, np.nan, 3])]), r", word 1 of 1 \(byte 4\): not all numbers are finite"),
        (word2vec()[:20] + b"x" * 5000, r", word 2 of 5 \(byte 20\): no space behind a word in 4,096 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # bytes of a gzip file have the time in them
)
def test_malformed_files(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "v").write_bytes(contents)
    with pytest.raises(ValueError, match=f"v{message}"):
        read_word_vectors(tmp_path / "v", WORDS)


def skip_thoughts(directory: Path, table: Any = None, dictionary: bytes = b"<eos>\nUNK\nthe\nold\n cat\n") -> Path:
    np.save(directory / "utable.npy", np.arange(15.0).reshape(5, 3) if table is None else table)
    (directory / "dictionary.txt").write_bytes(dictionary)
    return directory / "utable.npy"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_skip_thoughts_table(tmp_path: Path, dtype: type[Any], end: bytes) -> None:
    path = skip_thoughts(tmp_path, np.arange(15, dtype=dtype).reshape(5, 3), b"<eos>\r\nUNK\nthe\nold\n cat" + end)
    vectors, found = read_word_vectors(path, ["<pad>", "cat", "dog", "<unk>", "the"])
    assert found.tolist() == [1, 3, 4]
    np.testing.assert_array_equal(vectors, np.array([[12, 13, 14], [3, 4, 5], [6, 7, 8]], np.float32))
    assert vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dictionary": b"<eos>\nUNK\nthe\n"}, r"utable\.npy: 5 vectors for 3 words of .*dictionary\.txt"),
        ({"table": np.array([{"the": 1}])}, r"utable\.npy: .*Python objects"),
        ({"table": np.zeros((5, 3), np.int64)}, r"utable\.npy: expected dtype float32, float64"),
        ({"table": np.full((5, 3), 1e300)}, r"utable\.npy: the vector of 'cat' is not finite in float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_tables(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_word_vectors(skip_thoughts(tmp_path, **changes), WORDS)


def test_a_table_without_its_dictionary(tmp_path: Path) -> None:
    path = skip_thoughts(tmp_path)
    (tmp_path / "dictionary.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"dictionary\.txt: no such file"):
        read_word_vectors(path, WORDS)


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
        ({"index_to_key": ["a", "b", "c"]}, "3 words, but 2 vectors"),
        ({"vectors": np.zeros((2, 3), np.int64)}, "no floating-point array"),
        ({"vectors": np.full((2, 3), np.nan, np.float32)}, "the vector of 'cat' is not finite"),
    ],
)
def test_malformed_keyed_vectors(
    tmp_path: Path, keyed_vectors: type[Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"v: .*{message}"):
        read_word_vectors(save(tmp_path / "v", keyed_vectors, **attributes), WORDS)


def test_a_pickle_makes_no_room_for_more_objects_than_it_has(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"\x80\x02]r" + (2**31).to_bytes(4, "little") + b".")
    with pytest.raises(ValueError, match=rf"v: not a readable KeyedVectors file \(object number {2**31}\)"):
        read_word_vectors(tmp_path / "v", WORDS)


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
