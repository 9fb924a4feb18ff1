"""Candidates by one vector an item: encodings as the paper has them, and indexes that are those of their corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.search import fixed_dimensional, nearest
from crossret.search.fixed_dimensional import FixedDimensional, MeanVectors
from crossret.search.nearest import NearestVectors, nearest_candidates
from crossret.search.sharding import cut_corpus

DIM = 12


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "crossret"


def ragged(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    rows = torch.randn(sum(lengths), DIM, generator=torch.Generator().manual_seed(seed))
    return rows, torch.tensor([0, *lengths]).cumsum(0)


def oracle(made: FixedDimensional, rows: Tensor, offsets: Tensor, *, documents: bool) -> np.ndarray:
    """Section 2.1 of the paper, one item, repetition and part at a time, in float64."""
    planes = made._planes.double().numpy().reshape(DIM, made.repetitions, made.bits)
    projection = np.eye(DIM)[:, None].repeat(made.repetitions, 1)
    if made._projection is not None:
        projection = made._projection.double().numpy().reshape(DIM, made.repetitions, made.projected)
    vectors = []
    for item in range(len(offsets) - 1):
        own = rows[offsets[item] : offsets[item + 1]].double().numpy()
        blocks = []
        for r in range(made.repetitions):
            bits = (own @ planes[:, r] > 0).astype(int)
            for part in range(2**made.bits):
                wanted = np.array([part >> bit & 1 for bit in range(made.bits)])
                away = np.abs(bits - wanted).sum(1)
                inside = own[away == 0] @ projection[:, r]
                block = inside.sum(0)
                if documents and len(inside):
                    block /= len(inside)
                elif documents:
                    block = own[away.argmin()] @ projection[:, r]
                blocks.append(block)
        vectors.append(np.concatenate(blocks) / made.repetitions**0.5)
    return np.stack(vectors)


@pytest.mark.parametrize("projected", [5, DIM])
@pytest.mark.parametrize("numbers", [1, 2**24])
def test_encodings_are_those_of_the_paper(projected: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_dimensional, "_NUMBERS", numbers)
    made = FixedDimensional(DIM, bits=3, repetitions=4, projected=projected, seed=1)
    rows, offsets = ragged([3, 1, 9, 20])
    for encode, documents in ((made.of_queries, False), (made.of_documents, True)):
        vectors = encode(rows, offsets)
        assert vectors.shape == (4, made.dim)
        np.testing.assert_allclose(vectors, oracle(made, rows, offsets, documents=documents), atol=2e-5)
    again = FixedDimensional(DIM, bits=3, repetitions=4, projected=projected, seed=1)
    assert torch.equal(again.of_documents(rows, offsets), made.of_documents(rows, offsets))
    other = FixedDimensional(DIM, bits=3, repetitions=4, projected=projected, seed=2)
    assert not torch.equal(other.of_documents(rows, offsets), made.of_documents(rows, offsets))


def test_products_estimate_sum_max() -> None:
    """By many repetitions better than by few, and far better than means do."""
    rows, offsets = ragged([8] * 30)
    rows = torch.nn.functional.normalize(rows, dim=-1)
    queries = rows.view(30, 8, DIM)
    truth = torch.einsum("aid,bjd->abij", queries, queries).amax(3).sum(2)

    def agreement(made: FixedDimensional | MeanVectors) -> float:
        products = made.of_queries(rows, offsets) @ made.of_documents(rows, offsets).T
        both = torch.stack([products.flatten(), truth.flatten()])
        return float(torch.corrcoef(both)[0, 1])

    few, many = (FixedDimensional(DIM, bits=3, repetitions=count, projected=DIM) for count in (2, 64))
    assert agreement(MeanVectors(DIM)) < agreement(few) < agreement(many)
    assert agreement(many) > 0.95
    for name, value in {"bits": 13, "repetitions": 0, "projected": 0}.items():
        with pytest.raises(ValueError, match=f"{name} must be in"):
            FixedDimensional(DIM, **{name: value})


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same items, padded, packed and in shards."""
    directory = tmp_path_factory.mktemp("corpora")
    lengths = [1 + item % 7 for item in range(300)]
    rows, offsets = ragged(lengths, 3)
    for name in ("packed", "padded"):
        (directory / name).mkdir()
    np.save(directory / "packed" / "values.npy", rows.numpy())
    np.save(directory / "packed" / "offsets.npy", offsets.numpy())
    padded = torch.nn.utils.rnn.pad_sequence(list(rows.split(lengths)), batch_first=True)
    np.save(directory / "padded" / "features.npy", padded.numpy())
    np.save(directory / "padded" / "lengths.npy", np.array(lengths))
    cut_corpus(directory / "packed", directory / "shards", shards=4)
    return directory


@pytest.mark.parametrize("vectors", nearest.VECTORS)
def test_candidates_are_the_largest_products(corpora: Path, vectors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items = StoredItems.of_directory(corpora / "packed")
    made = FixedDimensional(DIM) if vectors == "muvera" else MeanVectors(DIM)
    unit = torch.nn.functional.normalize(torch.from_numpy(np.array(items.values)), dim=-1)
    assert items.offsets is not None
    ends = torch.from_numpy(items.offsets)
    products = made.of_queries(unit, ends)[:5] @ made.of_documents(unit, ends).T
    wanted = products.topk(9).indices.sort(1).values
    monkeypatch.setattr(nearest, "_ROWS_BYTES", 1000)  # several parts
    queries = unit[: items.offsets[5]], ends[:6]
    for corpus in (items, StoredItems.of_directory(corpora / "padded"), StoredShards.of_directory(corpora / "shards")):
        index = NearestVectors(corpus, vectors, normalize=True)
        assert torch.equal(torch.from_numpy(index.candidates(*queries, 9)).sort(1).values, wanted)
    monkeypatch.setattr(nearest, "_FLAT_BYTES", 100)  # lists, of which all are looked through
    monkeypatch.setattr(nearest, "_PROBED", 1.0)
    (nearest.user_cache() / next(iter(nearest.user_cache().iterdir())).name).unlink()
    lists = NearestVectors(StoredShards.of_directory(corpora / "shards"), vectors, normalize=True)
    found = torch.from_numpy(lists.candidates(*queries, 9)).sort(1).values
    assert (found[:, :, None] == wanted[:, None]).any(2).float().mean() > 0.9  # numbers have 16 bits


def test_an_index_is_kept_and_is_of_its_corpus(
    corpora: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "corpus"
    directory.mkdir()
    for name in ("values.npy", "offsets.npy"):
        (directory / name).write_bytes((corpora / "packed" / name).read_bytes())
    built: list[int] = []
    build = NearestVectors._build
    monkeypatch.setattr(NearestVectors, "_build", lambda self, *given: built.append(1) or build(self, *given))

    def found() -> np.ndarray:
        corpus = StoredItems.of_directory(directory)
        return nearest_candidates(corpus, corpus, "mean", 3, False)

    first = found()
    assert np.array_equal(found(), first) and len(built) == 1
    kept = next(cache.iterdir())
    kept.write_bytes(kept.read_bytes()[:100])  # cut: made again, not believed
    assert np.array_equal(found(), first) and len(built) == 2
    values = np.load(directory / "values.npy")
    np.save(directory / "values.npy", values[::-1])
    assert not np.array_equal(found(), first) and len(built) == 3
    monkeypatch.setattr(nearest, "user_cache", lambda: Path("/proc/nowhere"))
    found()  # cannot be kept
    with pytest.raises(ValueError, match="vectors must be one of muvera, mean, not 'sum'"):
        NearestVectors(StoredItems.of_directory(directory), "sum")


def test_what_an_index_cannot_be_of(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = StoredItems.of_directory(corpora / "packed")
    with pytest.raises(ValueError, match="faiss indexes a corpus on the disk"):
        nearest_candidates(items, np.ones((3, 2, DIM), np.float32), "mean", 3, False)
    missing: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", missing)
    with pytest.raises(ValueError, match=r"pip install 'crossret\[faiss\]'"):
        nearest_candidates(items, items, "mean", 3, False)
