"""rerank: the order of given candidates is that of all scores, for features and models, wherever they are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.models import Scan, ScanConfig
from crossret.models.encoded import Encoded
from crossret.search.candidates import read_candidates
from crossret.search.reranking import rerank
from crossret.search.sharding import cut_corpus
from crossret_kernels import maxsim_scores, scan_scores

N_QUERIES, N_ITEMS = 5, 23


def sequences(n: int, longest: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Padded features, float16, and lengths."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, longest, 8)).astype(np.float16), rng.integers(1, longest + 1, n)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries, padded, and a corpus, packed, padded and in shards."""
    directory = tmp_path_factory.mktemp("files")
    for name in ("queries", "padded", "packed"):
        (directory / name).mkdir()
    for name, (n, longest) in {"queries": (N_QUERIES, 4), "padded": (N_ITEMS, 6)}.items():
        features, lengths = sequences(n, longest, n)
        np.save(directory / name / "features.npy", features)
        np.save(directory / name / "lengths.npy", lengths)
    rows = [item[:length] for item, length in zip(features, lengths, strict=True)]
    np.save(directory / "packed" / "values.npy", np.concatenate(rows))
    np.save(directory / "packed" / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))
    cut_corpus(directory / "packed", directory / "shards", shards=4)
    return directory


def all_scores(scorer: Any, query: str) -> Tensor:
    """Of every query with every item."""
    sides = [sequences(N_QUERIES, 4, N_QUERIES), sequences(N_ITEMS, 6, N_ITEMS)]
    (v, n_v), (e, n_e) = sides if query == "image" else sides[::-1]
    scores: Tensor = scorer(torch.from_numpy(v).float(), torch.from_numpy(e).float(), n_v.tolist(), n_e.tolist())
    return scores if query == "image" else scores.T


def expected(scores: Tensor, candidates: np.ndarray, k: int) -> list[list[int]]:
    """The indices of each query, best first, and -1 where it has no more."""
    rows = []
    for row, chosen in zip(scores, candidates.tolist(), strict=True):
        best = sorted({item for item in chosen if item >= 0}, key=lambda item: (-float(row[item]), item))[:k]
        rows.append(best + [-1] * (min(k, candidates.shape[1]) - len(best)))
    return rows


def assert_reranked(found: tuple[Tensor, Tensor], scores: Tensor, candidates: np.ndarray, k: int) -> None:
    values, indices = found
    assert indices.tolist() == expected(scores, candidates, k)
    wanted = scores.float().gather(1, indices.clamp(min=0)).masked_fill(indices < 0, -torch.inf)
    torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("query", ["caption", "image"])
@pytest.mark.parametrize("layout", ["padded", "packed", "shards"])
@settings(max_examples=15)
@given(data=st.data())
def test_features(files: Path, layout: str, query: str, data: st.DataObject) -> None:
    width, k = data.draw(st.integers(1, 30)), data.draw(st.sampled_from([1, 3, 10**9]))
    row = st.lists(st.integers(-1, N_ITEMS - 1), min_size=width, max_size=width)
    candidates = np.array(data.draw(st.lists(row, min_size=N_QUERIES, max_size=N_QUERIES)), np.int8)
    scorer = data.draw(st.sampled_from([partial(scan_scores, direction="i2t"), maxsim_scores]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossret_kernels.topk.candidates._CANDIDATES", data.draw(st.sampled_from([1, 2 * width, 10**6])))
        patch.setattr("crossret_kernels.topk.candidates._PAIRS", data.draw(st.sampled_from([1, 3, 10**6])))
        patch.setattr("crossret_kernels.inputs.blocks.BLOCK_BYTES", data.draw(st.sampled_from([100, 300, 10**6])))
        corpus = StoredShards.of_directory(files / layout)
        queries = StoredItems.of_directory(files / "queries")
        found = rerank(scorer, queries, corpus, candidates, k=k, query=query)
    assert_reranked(found, all_scores(scorer, query), candidates, k)


def test_features_in_memory_and_progress(files: Path) -> None:
    features, lengths = sequences(N_QUERIES, 4, N_QUERIES)
    queries = [torch.from_numpy(item[:length]) for item, length in zip(features, lengths, strict=True)]
    candidates = torch.tensor([[0, 5, 22, -1]] * N_QUERIES)
    seen: list[tuple[int, int]] = []
    corpus = StoredShards.of_directory(files / "shards")
    found = rerank(maxsim_scores, queries, corpus, candidates, k=2, progress=lambda *counts: seen.append(counts))
    assert_reranked(found, all_scores(maxsim_scores, "caption"), candidates.numpy(), 2)
    assert seen == sorted(seen) and seen[-1] == (N_QUERIES, N_QUERIES)


def test_scores_that_are_no_numbers_come_as_in_a_search() -> None:
    """NaN before all numbers, and an infinite score of an item before no item."""
    corpus = np.array([[[1.0]], [[np.nan]], [[-1e38]], [[2.0]]], np.float32)
    queries = np.array([[[1e10]], [[1.0]]], np.float32)
    candidates = np.array([[-1, 2, 0, 1], [-1, -1, -1, -1]])
    values, indices = rerank(maxsim_scores, queries, corpus, candidates, k=4)
    assert indices.tolist() == [[1, 0, 2, -1], [-1] * 4]
    assert values.nan_to_num(nan=9.0).tolist()[0][0] == 9 and values[0, 2:].tolist() == [-torch.inf] * 2


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        (np.array([[0, 1]] * 4), ValueError, r"candidates: expected shape \(5, K\)"),
        (np.zeros((5, 2)), TypeError, "candidates must be integers, not float64"),
        (np.array([[0, 1]] * 3 + [[2, 23], [99, 0]]), ValueError, "row 3, column 1: 23 is no item of the corpus"),
        (np.array([[0, 1]] * 4 + [[-2, 0]]), ValueError, "row 4, column 0: -2 is no item of the corpus"),
    ],
)
def test_a_bad_candidate_is_named(files: Path, candidates: np.ndarray, error: type[Exception], message: str) -> None:
    corpus, queries = StoredShards.of_directory(files / "shards"), StoredItems.of_directory(files / "queries")
    with pytest.raises(error, match=message):
        rerank(maxsim_scores, queries, corpus, candidates, k=1)


def test_a_side_that_is_not_of_the_scorer_is_named(files: Path) -> None:
    model = Scan(ScanConfig(image_dim=6, vocabulary_size=5, embed_dim=8, word_dim=4))
    encoded = Encoded(torch.ones(2, 3, 8), torch.tensor([3, 1]))
    corpus, candidates = StoredShards.of_directory(files / "shards"), np.zeros((2, 1), np.int64)
    with pytest.raises(TypeError, match="queries: what a model encoded is scored by that model"):
        rerank(maxsim_scores, encoded, corpus, candidates, k=1)
    with pytest.raises(TypeError, match="corpus: scan scores what it encoded, not StoredShards"):
        rerank(model, encoded, corpus, candidates, k=1)
    assert model.training


def lines(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "no candidates"),
        (lines({"query": 0}), "line 1: has no list of results"),
        (lines({"query": 1, "results": []}), "line 1: results of query 1, expected 0"),
        (lines({"results": [{"index": 0}, {"index": True}]}), "line 1: result 1 has no index of an item"),
        (b"\x93NUMPY\x01\x00", "not a readable .npy file"),
    ],
)
def test_a_file_that_holds_no_candidates_is_named(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "found").write_bytes(contents)
    with pytest.raises(ValueError, match=message) as caught:
        read_candidates(tmp_path / "found")
    assert str(caught.value).startswith(f"{tmp_path}/found")
