"""The front door of late interaction: its names, shapes and layouts; scores are `maxsim_scores`'."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from crossret_kernels.late_interaction import explain, maxsim, maxsim_both_ways, maxsim_pairs, retrieve
from crossret_kernels.maxsim import op
from tests.kernels.maxsim.late import (
    BACKWARD,
    DIM,
    DOCUMENT_MASK,
    DOCUMENTS,
    EXPECTED,
    FLOATS,
    GENERATOR,
    LAYOUTS,
    QUERIES,
    QUERY_MASK,
    oracle,
)
from tests.kernels.told import told


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, backend: str) -> None:
    scores = maxsim(**LAYOUTS[layout], backend=backend)
    assert scores.is_contiguous()
    torch.testing.assert_close(scores, EXPECTED.float())
    torch.testing.assert_close(maxsim(**LAYOUTS[layout], backend=backend, direction="d2q").mT, BACKWARD.float())
    for largest in (True, False):
        values, indices = retrieve(**LAYOUTS[layout], k=2, largest=largest, backend=backend)
        expected = EXPECTED.float().topk(2, largest=largest)
        torch.testing.assert_close(values, expected.values)
        assert torch.equal(indices, expected.indices)
    pairs = torch.tensor([[2, 3], [0, 1], [2, 3]])
    scores = maxsim_pairs(**LAYOUTS[layout], pairs=pairs, backend=backend)
    torch.testing.assert_close(scores, EXPECTED[pairs[:, 0], pairs[:, 1]].float())


def test_lengths() -> None:
    lengths = [2, 5, 1], torch.tensor([6, 1, 2, 3])
    masks = [
        torch.arange(side.size(1)) < torch.as_tensor(own)[:, None]
        for side, own in zip((QUERIES, DOCUMENTS), lengths, strict=True)
    ]
    scores = maxsim(QUERIES, DOCUMENTS, query_lengths=lengths[0], document_lengths=lengths[1])
    torch.testing.assert_close(scores, oracle(QUERIES, DOCUMENTS, *masks).float())


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_documents_of_each_query(n: int, k: int, q: int, length: int, masked: bool, seed: int) -> None:
    """(n_queries, K, L, D): as each query's own documents score alone."""
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (
        torch.randn(n, q, DIM, generator=generator),
        torch.randn(n, k, length, DIM, generator=generator),
    )
    mask = torch.rand(n, k, length, generator=generator) < 0.5
    mask[..., -1] = True
    scores = maxsim(queries, documents, document_mask=mask if masked else None)
    assert scores.shape == (n, k)
    for own in range(n):
        expected = oracle(queries[own, None], documents[own], None, mask[own] if masked else None)[0]
        torch.testing.assert_close(scores[own], expected.float())


def test_lengths_of_documents_of_each_query() -> None:
    documents, lengths = torch.randn(3, 2, 6, DIM, generator=GENERATOR), torch.tensor([[6, 1], [2, 5], [3, 3]])
    mask = torch.arange(6) < lengths[..., None]
    expected = maxsim(QUERIES, documents, document_mask=mask)
    assert torch.equal(maxsim(QUERIES, documents, document_lengths=lengths), expected)
    assert torch.equal(maxsim(QUERIES, documents, document_lengths=lengths.numpy()), expected)
    assert torch.equal(maxsim(QUERIES, documents[:, :, :0], empty_score=-2.0), torch.full((3, 2), -2.0))


def test_documents_in_any_memory() -> None:
    """Documents that are views, and candidates that a call takes in slices."""
    documents = DOCUMENTS[:, None].expand(-1, 3, -1, -1).transpose(0, 1)
    torch.testing.assert_close(maxsim(QUERIES, documents), oracle(QUERIES, DOCUMENTS).float())
    torch.testing.assert_close(maxsim(QUERIES.numpy(), documents.contiguous().numpy()), maxsim(QUERIES, documents))


@pytest.mark.parametrize("layout", ["masks", "numpy"])
def test_a_single_item(layout: str) -> None:
    """(L, D), and (L,) of its mask."""
    queries, documents, query_mask, document_mask = LAYOUTS[layout].values()
    scores = maxsim(queries[0], documents, query_mask=query_mask[0], document_mask=document_mask)
    torch.testing.assert_close(scores, EXPECTED[:1].float())
    scores = maxsim(queries, documents[1], query_mask=query_mask, document_mask=document_mask[1])
    torch.testing.assert_close(scores, EXPECTED[:, 1:2].float())
    scores = maxsim_pairs(queries[0], documents[1], query_mask=query_mask[0], document_mask=document_mask[1])
    torch.testing.assert_close(scores, EXPECTED[:1, 1].float())
    values, indices = retrieve(queries[0], documents, k=9, query_mask=query_mask[0], document_mask=document_mask)
    assert values.shape == indices.shape == (1, 4)


def test_items_in_their_places_are_pairs() -> None:
    scores = maxsim_pairs(QUERIES, DOCUMENTS[:3], query_mask=QUERY_MASK, document_mask=DOCUMENT_MASK[:3])
    torch.testing.assert_close(scores, EXPECTED.diagonal().float())


def test_gradients_of_documents_of_each_query() -> None:
    sides = QUERIES[:2], DOCUMENTS.reshape(2, 2, 6, DIM)
    given, wide = ([side.to(dtype, copy=True).requires_grad_() for side in sides] for dtype in FLOATS)
    scores = maxsim(*given)
    expected = torch.cat([oracle(query[None], own) for query, own in zip(*wide, strict=True)])
    weights = torch.randn(scores.shape, generator=GENERATOR)
    ours = torch.autograd.grad((scores * weights).sum(), given)
    for gradient, exact in zip(ours, torch.autograd.grad((expected * weights).sum(), wide), strict=True):
        torch.testing.assert_close(gradient, exact.float())


def test_empty_items_score_what_is_asked() -> None:
    mask = DOCUMENT_MASK.clone()
    mask[2] = False
    scores = maxsim(QUERIES, DOCUMENTS, document_mask=mask, empty_score=-1.0)
    assert torch.equal(scores[:, 2], torch.full((3,), -1.0))
    with pytest.raises(ValueError, match=r"document_mask\[2\] has no True: every document needs at least one row"):
        maxsim(QUERIES, DOCUMENTS, document_mask=mask)


OWN = DOCUMENTS[:3, None].expand(-1, 2, -1, -1)
MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: maxsim(QUERIES, DOCUMENTS[..., :4]), ValueError, "queries have D = 8 but documents have D = 4"),
    (lambda: maxsim(QUERIES.long(), DOCUMENTS), TypeError, "queries must be float32"),
    (lambda: maxsim(QUERIES, DOCUMENTS, query_mask=DOCUMENT_MASK), ValueError,
     "query_mask must have shape (n, L) = (3, 5)"),
    (lambda: maxsim(QUERIES, DOCUMENTS, query_lengths=[1, 2]), ValueError,
     "query_lengths must hold one length for each of 3 queries"),
    (lambda: maxsim(QUERIES, DOCUMENTS, direction="t2i"), ValueError, "direction must be one of q2d, d2q"),
    (lambda: maxsim(QUERIES, DOCUMENTS[None]), ValueError, "documents of 1 queries, (n_queries, K, L, D)"),
    (lambda: maxsim(QUERIES, OWN, document_mask=torch.ones(2, 3, 6, dtype=torch.bool)), ValueError,
     "document_mask must have shape (n_queries, K, L) = (3, 2, 6), got (2, 3, 6)"),
    (lambda: maxsim(QUERIES, OWN, document_mask=[[True]]), TypeError, "document_mask must be a bool tensor, not list"),  # type: ignore[arg-type]
    (lambda: maxsim(QUERIES, OWN[:, :, :0]), ValueError, "documents has no rows"),
    (lambda: maxsim(QUERIES, OWN, document_lengths=torch.ones(2, 3, dtype=torch.int64)), ValueError,
     "document_lengths must hold one length for each of 6 documents"),
    (lambda: maxsim(QUERIES, OWN.to_sparse()), TypeError, "documents must be a dense tensor, not a torch.sparse_coo"),
    (lambda: maxsim(QUERIES, [1, 2, 3]), TypeError, "documents[0] must be a (L, D) tensor, not int"),  # type: ignore[list-item]
    (lambda: maxsim_pairs(QUERIES, DOCUMENTS), ValueError, "3 queries and 4 documents make no pairs"),
    (lambda: maxsim_pairs(QUERIES, DOCUMENTS, pairs=torch.tensor([[0, 4]])), ValueError,
     "pairs[0] names document 4, but there are 4 documents"),
    (lambda: maxsim_pairs(QUERIES, DOCUMENTS, pairs=torch.tensor([[3, 0]])), ValueError,
     "pairs[0] names query 3, but there are 3 queries"),
    (lambda: retrieve(QUERIES, DOCUMENTS, k=0), ValueError, "k must be at least 1"),
    (lambda: retrieve(QUERIES, DOCUMENTS, k=1, return_alignment=1), TypeError, "return_alignment must be"),  # type: ignore[call-overload]
    (lambda: retrieve(QUERIES, DOCUMENTS, k=9, return_alignment=True, context_pooling="lse"), ValueError,
     "context_pooling beside return_alignment must be one of max, not 'lse'"),
    (lambda: retrieve(QUERIES, DOCUMENTS[None], k=1), ValueError, "documents must have shape (n, L, D)"),
    (lambda: retrieve(QUERIES, DOCUMENTS, k=1, candidates=[[0], [1], [4]]), ValueError,
     "candidates: row 2, column 0: 4 is no item of the corpus"),
    (lambda: retrieve(QUERIES, DOCUMENTS, k=1, candidates=[[0], [1]]), ValueError,
     "candidates: expected shape (3, K), a row for every query, got (2, 1)"),
    (lambda: retrieve(QUERIES, DOCUMENTS, k=1, candidates=[[0], [1], [0.5]]), TypeError,  # type: ignore[list-item]
     "candidates[2] must be integers (K,), got float64 (1,)"),
    (lambda: retrieve(QUERIES, DOCUMENTS, k=1, candidates="faiss"), TypeError,  # type: ignore[arg-type]
     "candidates must be an array, a tensor or a list of rows, not str"),
]  # fmt: skip
test_mistakes_are_named = told(lambda call: call(), {case[-1]: case for case in MISTAKES})


class TestBoth:
    """`maxsim_both_ways`: each score as its own direction has it."""

    @given(
        st.integers(0, 5), st.integers(0, 7), st.integers(1, 70), st.integers(1, 40), st.integers(1, 40),
        st.sampled_from(["sum", "avg", "max"]), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]),
        st.integers(0, 99),
    )  # fmt: skip
    def test_agrees_with_each_direction(
        self, n: int, m: int, length: int, width: int, dim: int, pooling: str, normalize: bool, dtype: torch.dtype,
        seed: int,
    ) -> None:  # fmt: skip
        """Ragged items of any length, some empty."""
        generator = torch.Generator().manual_seed(seed)
        queries, documents = (
            torch.randn(*shape, dim, generator=generator).to(dtype) for shape in ((n, width), (m, length))
        )
        lengths = [
            torch.randint(0, most + 1, (count,), generator=generator) for count, most in ((n, width), (m, length))
        ]
        options: dict[str, Any] = {
            "query_lengths": lengths[0], "document_lengths": lengths[1], "pooling": pooling, "normalize": normalize,
            "empty_score": -3.0, "backend": "cpu",
        }  # fmt: skip
        both = maxsim_both_ways(queries, documents, **options)
        for scores, direction in zip(both, ("q2d", "d2q"), strict=True):
            torch.testing.assert_close(scores, maxsim(queries, documents, direction=direction, **options))

    @pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
    @pytest.mark.parametrize("own", [False, True])
    def test_gradients(self, own: bool, wanted: tuple[int, ...]) -> None:
        sides = [QUERIES[:2].clone(), (DOCUMENTS.reshape(2, 2, 6, DIM) if own else DOCUMENTS).clone()]
        given = [sides[index].requires_grad_() for index in wanted]
        both = maxsim_both_ways(*sides)
        weights = [torch.randn(scores.shape, generator=GENERATOR) for scores in both]
        ours = torch.autograd.grad(sum((s * w).sum() for s, w in zip(both, weights, strict=True)), given)
        each = [maxsim(*sides, direction=direction) for direction in ("q2d", "d2q")]
        theirs = torch.autograd.grad(sum((s * w).sum() for s, w in zip(each, weights, strict=True)), given)
        torch.testing.assert_close(ours, theirs)
        (alone,) = torch.autograd.grad(maxsim_both_ways(*sides)[1].sum(), given[:1])
        torch.testing.assert_close(alone, torch.autograd.grad(maxsim(*sides, direction="d2q").sum(), given[:1])[0])

    def test_gradients_through_a_checkpoint(self) -> None:
        """Which computes the scores again for their gradients, and hands out once what they keep."""
        leaf, other = (QUERIES.clone().requires_grad_() for _ in range(2))
        again = checkpoint(lambda q: sum(maxsim_both_ways(q, DOCUMENTS)), leaf, use_reentrant=False)
        again.sum().backward()
        sum(maxsim_both_ways(other, DOCUMENTS)).sum().backward()  # type: ignore[union-attr]
        assert torch.equal(leaf.grad, other.grad)  # type: ignore[arg-type]

    def test_items_too_long_for_one_product(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = maxsim_both_ways(QUERIES, DOCUMENTS)
        monkeypatch.setattr(op, "MOST_CELLS", 29)  # of 5 × 6
        monkeypatch.setattr(op, "BOTH_WAYS", {"cpu": None})
        torch.testing.assert_close(maxsim_both_ways(QUERIES, DOCUMENTS), expected)

    def test_nan_and_zeros(self) -> None:
        """A NaN is the maximum of what it is among, on either side; of −0 and 0 the score is 0."""
        for length, width in ((3, 2), (40, 33)):
            queries, documents = torch.zeros(2, width, DIM), torch.zeros(2, length, DIM)
            queries[0] = -1.0
            documents[1, -1, 0] = torch.nan
            for scores in maxsim_both_ways(queries, documents):
                assert scores[:, 1].isnan().all()
                assert torch.equal(scores[:, 0].signbit(), torch.tensor([False, False]))


@pytest.mark.parametrize("direction", ["q2d", "d2q"])
@pytest.mark.parametrize("pooling", ["sum", "avg", "max"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_contributions_add_up_to_the_score(layout: str, pooling: str, direction: str) -> None:
    """Bit for bit, and each is its best similarity in float64, with the token that gives it."""
    pairs = torch.tensor([[2, 1], [0, 3], [0, 0], [1, 2]])
    for normalize in (False, True):
        options: dict[str, Any] = {
            **LAYOUTS[layout], "pairs": pairs, "pooling": pooling, "normalize": normalize, "direction": direction
        }  # fmt: skip
        scores, places, similarities, contributions = explain(**options)
        assert torch.equal(scores, maxsim_pairs(**options))
        assert torch.equal(contributions.sum(1).float(), scores)
        for row, (q, d) in enumerate(pairs.tolist()):
            sides = QUERIES[q][QUERY_MASK[q]].double(), DOCUMENTS[d][DOCUMENT_MASK[d]].double()
            masked = "document_mask" in options, DOCUMENT_MASK[d]
            if direction == "d2q":
                sides, masked = sides[::-1], ("query_mask" in options, QUERY_MASK[q])
            if normalize:
                sides = tuple(torch.nn.functional.normalize(side, dim=1) for side in sides)  # type: ignore[assignment]
            best = (sides[0] @ sides[1].T).max(1)
            own = places[row] >= 0
            rows = masked[1].nonzero()[:, 0] if masked[0] else torch.arange(len(sides[1]))
            assert torch.equal(places[row][own], rows[best.indices])
            torch.testing.assert_close(similarities[row][own], best.values)
            shares = best.values / (len(sides[0]) if pooling == "avg" else 1)
            if pooling == "max":
                shares = best.values.where(best.values == best.values.max(), 0)
            torch.testing.assert_close(contributions[row][own], shares, rtol=1e-5, atol=1e-5)
            assert not contributions[row][~own].any() and not similarities[row][~own].any()


def test_documents_of_each_query_are_explained() -> None:
    documents = torch.stack([DOCUMENTS[[3, 1]], DOCUMENTS[[0, 2]], DOCUMENTS[[2, 0]]])
    mask = torch.stack([DOCUMENT_MASK[[3, 1]], DOCUMENT_MASK[[0, 2]], DOCUMENT_MASK[[2, 0]]])
    for direction in ("q2d", "d2q"):
        made = explain(QUERIES, documents, query_mask=QUERY_MASK, document_mask=mask, direction=direction)
        pairs = torch.tensor([[0, 3], [0, 1], [1, 0], [1, 2], [2, 2], [2, 0]])
        listed = explain(**LAYOUTS["masks"], pairs=pairs, direction=direction)
        for own, expected in zip(made, listed, strict=True):
            assert torch.equal(own, expected.unflatten(0, (3, 2)))
    for wrong, message in (
        ({"document_mask": torch.zeros_like(mask)}, "document_mask[0] has no True"),
        ({"pairs": pairs}, "documents must have shape (n, L, D)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            explain(QUERIES, documents, **wrong)
