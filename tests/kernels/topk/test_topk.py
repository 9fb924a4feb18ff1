"""scan_topk and maxsim_topk: the same, bit for bit, as sorting all scores, however either side is stored and cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import UnsupportedByBackend, maxsim_scores, maxsim_topk, scan_scores, scan_topk
from crossret_kernels.topk import streamed as topk
from tests.kernels.peak_memory import assert_peaks_rise_by_at_most
from tests.kernels.strategies import examples
from tests.kernels.topk.rankings import assert_same_bits, blocks_of, sorted_scores

NAMES = {"scan": (scan_scores, scan_topk), "maxsim": (maxsim_scores, maxsim_topk)}
DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)


def assert_same_ranking(found: tuple[Tensor, Tensor], scores: Tensor, query: str, k: int) -> None:
    """The begin of all scores sorted, where blocks of them may differ in rounding: equals may change places."""
    values, indices = found
    expected, _ = sorted_scores(scores, query, k)
    rows = scores.T if query == "caption" else scores
    # Attended vectors of small integers nearly cancel, and the rounding of their weights shows in their cosine.
    close = {"rtol": 1e-5, "atol": 1e-4, "equal_nan": True}
    torch.testing.assert_close(values, expected, **close)
    torch.testing.assert_close(rows.gather(1, indices), values, **close)
    assert all(len(set(row)) == len(row) for row in indices.tolist())


@dataclass(frozen=True)
class Side:
    """Padded features of a few small integers, so that many scores are equal, in any of the layouts."""

    values: Tensor
    lengths: Tensor
    layout: str

    def stored(self, directory: Path | None = None) -> tuple[Any, Any]:
        """(features, lengths); with a directory, the features as read-only memory maps in it."""
        if self.layout == "padded":
            return (self.values if directory is None else mapped(self.values, directory)), self.lengths
        items = [item[:length] for item, length in zip(self.values, self.lengths.tolist(), strict=True)]
        if self.layout == "list":
            return items, None
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        packed = torch.cat(items)
        return ((packed, offsets) if directory is None else (mapped(packed, directory), offsets.numpy())), None


def mapped(values: Tensor, directory: Path) -> np.memmap[Any, Any]:
    path = directory / f"{len(list(directory.iterdir()))}.npy"
    np.save(path, values.numpy())
    array = np.load(path, mmap_mode="r")
    assert isinstance(array, np.memmap) and not array.flags.writeable
    return array


@st.composite
def sides(draw: st.DrawFn, most: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Side:
    n, longest = draw(st.integers(1, most)), draw(st.integers(1, 4))
    values = torch.randint(-1, 2, (n, longest, dim), generator=generator).to(dtype)
    lengths = torch.randint(1, longest + 1, (n,), generator=generator)
    for item in draw(st.lists(st.integers(0, n - 1), max_size=2)):
        values[item, 0, 0] = torch.nan
    return Side(values, lengths, draw(st.sampled_from(("padded", "packed", "list"))))


@dataclass(frozen=True)
class Case:
    images: Side
    captions: Side
    k: int
    query: str
    options: dict[str, Any] = field(default_factory=dict)
    block_scores: int = 1
    block_bytes: int = 1


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype, dim = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    images, captions = (draw(sides(most, dim, generator, dtype)) for most in draw(st.permutations((20, 5))))
    return Case(
        images,
        captions,
        draw(st.integers(1, 22)),
        draw(st.sampled_from(topk.QUERIES)),
        {"direction": draw(st.sampled_from(("t2i", "i2t"))), "normalize": draw(st.booleans())},
        draw(st.sampled_from((1, 9, 30, 100))),
        draw(st.sampled_from((1, 40, 100, 400))),
    )


@pytest.mark.parametrize("name", NAMES)
@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), maps=st.sampled_from(((), ("corpus",), ("corpus", "queries"))))
def test_it_is_the_begin_of_all_scores_sorted(name: str, tmp_path: Path, case: Case, maps: tuple[str, ...]) -> None:
    """Of memory maps too, read in blocks."""
    scores, best = NAMES[name]
    dtype = case.images.values.dtype
    maps = () if dtype == torch.bfloat16 else maps  # which NumPy has not
    # float64 is scored by "torch", whose rounding depends on the batch where sums of small integers are not all.
    whole = dtype == torch.float64 and (name == "scan" or case.options["normalize"])
    (regions, n_regions), (words, n_words) = case.images.stored(), case.captions.stored()
    every = scores(regions, words, n_regions, n_words, **case.options)
    places = ("corpus", "queries") if case.query == "caption" else ("queries", "corpus")
    (regions, n_regions), (words, n_words) = (
        side.stored(tmp_path if place in maps else None)
        for side, place in zip((case.images, case.captions), places, strict=True)
    )
    with blocks_of(2**20 if whole else case.block_scores, 2**20 if whole else case.block_bytes):
        found = best(regions, words, n_regions, n_words, k=case.k, query=case.query, **case.options)
    if name == "scan":
        assert_same_ranking(found, every, case.query, case.k)
    else:
        assert_same_bits(found, sorted_scores(every, case.query, case.k))


@pytest.mark.parametrize(("query", "k"), [("caption", 1), ("image", 10), ("caption", 400), ("image", 2500)])
def test_blocks_of_the_usual_size(query: str, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    documents, questions = (torch.randn(n, 2, 3, generator=generator) for n in (2000, 1600))
    scores = maxsim_scores(documents, questions)
    values, order = (scores.T if query == "caption" else scores).sort(dim=1, descending=True, stable=True)
    assert_same_bits(maxsim_topk(documents, questions, k=k, query=query), (values[:, :k], order[:, :k]))


def test_nan_comes_first_and_infinities_take_their_places() -> None:
    corpus = torch.tensor([1.0, -torch.inf, torch.nan, torch.inf, 1.0, torch.nan]).view(6, 1, 1)
    for block in (1, 2, 100):
        with blocks_of(block, 4 * block):
            values, indices = maxsim_topk(corpus, torch.ones(1, 1, 1), k=6)
        assert indices.tolist() == [[2, 5, 3, 0, 4, 1]]
        assert values[0, :2].isnan().all()
        assert values[0, 2:].tolist() == [torch.inf, 1, 1, -torch.inf]


def test_nothing_to_search_in_or_for() -> None:
    some, none = torch.ones(3, 2, 4), torch.ones(0, 2, 4)
    for regions, words, shape in ((none, some, (3, 0)), (some, none, (0, 2)), (none, none, (0, 0))):
        for values, indices in (scan_topk(regions, words, k=2), maxsim_topk(words, regions, k=2, query="image")):
            assert (values.shape, values.dtype) == (shape, torch.float32)
            assert (indices.shape, indices.dtype) == (shape, torch.int64)
    packed = (torch.ones(0, 4), torch.zeros(1, dtype=torch.int64))
    assert scan_topk(packed, some, k=2)[0].shape == (3, 0)


def test_no_gradient_is_kept() -> None:
    regions = torch.randn(5, 2, 3, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        values, _ = scan_topk(regions.to(dtype), torch.randn(4, 2, 3, dtype=dtype), k=2)
        assert values.dtype == dtype
        assert not values.requires_grad


def test_progress_counts_the_items_of_the_corpus() -> None:
    seen: list[tuple[int, int]] = []
    with blocks_of(8, 10**6):
        maxsim_topk(torch.ones(7, 1, 1), torch.ones(4, 1, 1), k=1, progress=lambda *counts: seen.append(counts))
    assert seen == [(2, 7), (4, 7), (6, 7), (7, 7)]


def test_what_progress_raises_ends_the_search() -> None:
    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maxsim_topk(torch.ones(7, 1, 1), torch.ones(4, 1, 1), k=1, progress=interrupted)


REGIONS, WORDS = torch.ones(3, 2, 4), torch.ones(5, 2, 4)
ARRAY = np.ones((3, 2, 4), np.float32)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((REGIONS, WORDS), {"k": 0}, ValueError, "k must be at least 1, not 0"),
        ((REGIONS, WORDS), {"k": True}, TypeError, "k must be an integer, not bool"),
        ((REGIONS, WORDS), {"query": "t2i"}, ValueError, "query must be one of caption, image, not 't2i'"),
        ((REGIONS, WORDS), {"progress": 3}, TypeError, "progress must be a function"),
        ((REGIONS, WORDS), {"backend": "cuda"}, UnsupportedByBackend, "cuda"),
        ((REGIONS, WORDS[..., :3]), {}, ValueError, "regions have D = 4 but words have D = 3"),
        ((REGIONS, WORDS, None, [1, 2, 1, 1, 3]), {}, ValueError, r"word_lengths\[4\] is 3: it must lie in 1..2"),
        ((ARRAY.astype(np.int64), WORDS), {}, TypeError, "regions must be float16, float32 or float64, not int64"),
        ((ARRAY.astype(">f4"), WORDS), {}, TypeError, "regions is >f4, not in this machine's byte order"),
        ((ARRAY, WORDS, np.array([2, 2, 0])), {}, ValueError, r"region_lengths\[2\] is 0"),
        (((ARRAY[0], np.array([0, 1])), WORDS), {}, ValueError, r"regions\[1\] \(cu_seqlens\) ends at 1 but .* 2 rows"),
        (([*REGIONS, ARRAY[0].astype(np.float64)], WORDS), {}, TypeError, r"regions\[3\] is torch.float64"),
        ((np.ma.masked_array(ARRAY), WORDS), {}, TypeError, "regions must be an array without a mask"),
        ((ARRAY, WORDS, np.ma.masked_array([2, 2, 1])), {}, TypeError, "region_lengths must be an array without"),
        (("regions", WORDS), {}, TypeError, r"regions\[0\] must be a \(L, D\) tensor, not str"),
    ],
)
def test_mistakes_are_named_before_anything_is_scored(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    seen: list[int] = []
    with blocks_of(1, 1), pytest.raises(error, match=message):
        scan_topk(*arguments, **{"k": 1, "progress": lambda done, _: seen.append(done), **options})
    assert not seen


def test_memory_does_not_grow_with_the_corpus() -> None:
    assert_peaks_rise_by_at_most(200, "topk corpus", "topk queries", "topk map")


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("layout", ["unaligned", "strided"])
def test_arrays_that_no_tensor_can_share(layout: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    regions, words = rng.standard_normal((7, 3, 4)).astype(dtype), rng.standard_normal((2, 3, 4)).astype(dtype)
    if layout == "unaligned":
        memory = np.zeros(regions.nbytes + 1, np.uint8)[1:]
        stored: Any = memory.view(dtype).reshape(regions.shape)
    else:
        stored = np.zeros((14, 3, 4), dtype)[::-2]
    stored[:] = regions
    assert not (stored.flags.aligned and stored.flags.c_contiguous)
    found = topk.feature_topk(scan_scores, stored, words, k=4, dtype=torch.float32)
    wanted = topk.feature_topk(scan_scores, regions, words, k=4, dtype=torch.float32)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@examples(60)
@given(st.data())
def test_parts_of_a_corpus_merge_to_the_whole(data: st.DataObject) -> None:
    """In the blocks of the whole, by any cuts between them and in any order: the same bits, NaN and ties among them."""
    seed = data.draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    n_queries, n_items, k = (data.draw(st.integers(1, most)) for most in (5, 40, 50))
    scores = torch.randint(-2, 3, (n_queries, n_items), generator=generator).float()
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = data.draw(
        st.sampled_from((torch.nan, torch.inf, -torch.inf, -0.0))
    )
    queries, corpus = _Rows(n_queries), _Rows(n_items)
    query_runs, corpus_runs = queries.runs(data.draw(st.integers(1, 5))), corpus.runs(data.draw(st.integers(1, 40)))

    def score(rows: slice, columns: slice) -> Tensor:
        return scores[rows, columns]

    cuts = data.draw(st.sets(st.integers(1, len(corpus_runs) - 1))) if len(corpus_runs) > 1 else set()
    bounds = [0, *sorted(cuts), len(corpus_runs)]
    parts = [
        topk.topk_of_runs(score, queries, query_runs, corpus, corpus_runs[first:last], k=k)
        for first, last in pairwise(bounds)
    ]
    values, indices = topk.merge_topk(data.draw(st.permutations(parts)), k)
    expected, order = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(indices, order[:, :k])
    torch.testing.assert_close(values, expected[:, :k], rtol=0, atol=0, equal_nan=True)


class _Rows:
    """Items that are blocks of their own numbers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def runs(self, most: int) -> list[slice]:
        return [slice(start, min(start + most, self.n)) for start in range(0, self.n, most)]

    def __getitem__(self, run: slice) -> slice:
        return run
