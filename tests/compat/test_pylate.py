"""PyLate's scores without PyLate: against its formulas where both agree, and where they differ on purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret.compat import pylate
from crossret.compat.pylate import colbert_kd_scores, colbert_scores, colbert_scores_pairwise
from tests.compat.oracles import chosen, embeddings, every, some

QUERIES, DOCUMENTS = embeddings(3, 5), embeddings(4, 6, seed=1)
QUERY_MASK, MASK = some(3, 5), some(4, 6, seed=1)
EXPECTED = every(chosen(QUERIES, QUERY_MASK), chosen(DOCUMENTS, MASK)).float()


def multiplied(queries: Tensor, documents: Tensor, query_mask: Tensor, mask: Tensor) -> Tensor:
    """Masks as factors of similarities, as PyLate has them."""
    similarities = torch.einsum("aid,bjd->abij", queries, documents)
    return (similarities * query_mask[:, None, :, None] * mask[None, :, None]).amax(3).sum(2)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64, torch.bfloat16])
def test_masks(dtype: torch.dtype) -> None:
    scores = colbert_scores(QUERIES, DOCUMENTS, QUERY_MASK.to(dtype), MASK.to(dtype))
    torch.testing.assert_close(scores, EXPECTED)
    scores = colbert_scores(QUERIES.numpy(), DOCUMENTS.numpy(), QUERY_MASK.numpy(), MASK.numpy())
    torch.testing.assert_close(scores, EXPECTED)


def test_masked_rows_never_win() -> None:
    queries, documents = QUERIES.abs(), -DOCUMENTS.abs()
    assert (multiplied(queries, documents, QUERY_MASK, MASK)[:, ~MASK.all(1)] == 0).all()
    scores = colbert_scores(queries, documents, QUERY_MASK, MASK)
    torch.testing.assert_close(scores, every(chosen(queries, QUERY_MASK), chosen(documents, MASK)).float())


@pytest.mark.parametrize("mask", [None, torch.ones(4, 6)])
def test_zeros_are_padding_unless_a_mask_says_otherwise(mask: Tensor | None) -> None:
    documents = DOCUMENTS * MASK[..., None]
    scores = colbert_scores(QUERIES, documents, documents_mask=mask)
    own = chosen(DOCUMENTS, MASK) if mask is None else list(documents)
    torch.testing.assert_close(scores, every(list(QUERIES), own).float())


def test_stacked_documents_are_columns_by_item() -> None:
    stacked, mask = torch.stack([DOCUMENTS, DOCUMENTS.flip(0)], 1), torch.stack([MASK, MASK.flip(0)], 1)
    scores = colbert_scores(QUERIES, stacked, QUERY_MASK, mask)
    torch.testing.assert_close(scores, torch.stack([EXPECTED, EXPECTED.flip(1)], 2).flatten(1))


def test_stacked_documents_may_be_listed() -> None:
    """As PyLate stacks them."""
    stacked, mask = torch.stack([DOCUMENTS, DOCUMENTS.flip(0)], 1), torch.stack([MASK, MASK.flip(0)], 1)
    for documents, own in ((list(stacked), list(mask)), (list(stacked.numpy()), mask), (stacked.tolist(), mask)):
        expected = colbert_scores(QUERIES, stacked, QUERY_MASK, mask)
        assert torch.equal(colbert_scores(QUERIES, documents, QUERY_MASK, own), expected)
        expected = colbert_kd_scores(QUERIES, stacked[:3], QUERY_MASK, mask[:3])
        assert torch.equal(colbert_kd_scores(QUERIES, documents[:3], QUERY_MASK, own[:3]), expected)
    with pytest.raises(ValueError, match=r"documents_embeddings\[1\] has shape \(1, 6, 8\), but"):
        colbert_kd_scores(QUERIES, [stacked[0], stacked[1, :1], stacked[2]])


def test_documents_of_each_query() -> None:
    documents = torch.stack([DOCUMENTS[[0, 1]], DOCUMENTS[[2, 3]], DOCUMENTS[[3, 1]]])
    mask = torch.stack([MASK[[0, 1]], MASK[[2, 3]], MASK[[3, 1]]])
    places = torch.tensor([[0, 1], [2, 3], [3, 1]])
    torch.testing.assert_close(
        colbert_kd_scores(QUERIES, documents, QUERY_MASK, mask.float()), EXPECTED.gather(1, places)
    )
    with pytest.raises(ValueError, match="documents_embeddings must be"):
        colbert_kd_scores(QUERIES, DOCUMENTS)


def test_lists() -> None:
    queries, documents = chosen(QUERIES, QUERY_MASK), chosen(DOCUMENTS, MASK)
    torch.testing.assert_close(colbert_scores(queries, documents), EXPECTED)
    torch.testing.assert_close(colbert_scores_pairwise(queries, documents[:3]), EXPECTED.diagonal())
    arrays = [item.numpy() for item in documents[:3]]
    torch.testing.assert_close(colbert_scores_pairwise([item.numpy() for item in queries], arrays), EXPECTED.diagonal())
    padded = [item * own[:, None] for item, own in zip(DOCUMENTS, MASK, strict=True)]
    torch.testing.assert_close(colbert_scores(queries, padded), EXPECTED)
    torch.testing.assert_close(colbert_scores(queries, list(DOCUMENTS), None, MASK), EXPECTED)
    with pytest.raises(ValueError, match="3 queries and 4 documents"):
        colbert_scores_pairwise(queries, documents)


def test_gradients() -> None:
    leaves = [QUERIES.clone().requires_grad_(), DOCUMENTS.clone().requires_grad_()]
    colbert_scores(*leaves, QUERY_MASK, MASK).square().sum().backward()
    found = [leaf.grad for leaf in leaves]
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    every(chosen(doubles[0], QUERY_MASK), chosen(doubles[1], MASK)).square().sum().backward()
    for own, double in zip(found, doubles, strict=True):
        assert own is not None and double.grad is not None
        torch.testing.assert_close(own.double(), double.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["auto", "flash", "Lik", "torch", "reference", None])
def test_backends(backend: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyLate's names and crossret's, of which "auto" and the other packages' kernels are the fastest there is."""
    named: list[str | None] = []

    def recorded(*sides: Tensor, backend: str | None, **options: float) -> Tensor:
        named.append(backend)
        return maxsim(*sides, backend=backend, **options) if sides[1].dim() == 4 else pairs(*sides, **options)

    maxsim, pairs = pylate.maxsim, pylate.maxsim_pairs
    monkeypatch.setattr(pylate, "maxsim", recorded)
    monkeypatch.setattr(pylate, "maxsim_pairs", recorded)
    places = torch.arange(3)[:, None]
    torch.testing.assert_close(
        colbert_kd_scores(QUERIES, DOCUMENTS[:3, None], QUERY_MASK, MASK[:3, None], backend), EXPECTED.gather(1, places)
    )
    expected = every(list(QUERIES), list(DOCUMENTS[:3])).diagonal().float()
    torch.testing.assert_close(colbert_scores_pairwise(QUERIES, DOCUMENTS[:3], backend=backend), expected)
    assert named == [backend if backend in ("torch", "reference") else None] * 2


def test_mistakes() -> None:
    mask = MASK.float()
    mask[2, 3] = 0.5
    with pytest.raises(ValueError, match=r"documents_mask\[2, 3\] is 0.5"):
        colbert_scores(QUERIES, DOCUMENTS, None, mask)
    with pytest.raises(ValueError, match=r"queries_mask must have shape \(3, 5\), got \(3, 4\)"):
        colbert_scores(QUERIES, DOCUMENTS, QUERY_MASK[:, 1:])
    for few in ([], [MASK[0]]):  # a single one would do for all
        with pytest.raises(ValueError, match=f"documents_mask holds {len(few)} masks, but there are 4 items"):
            colbert_scores(QUERIES, list(DOCUMENTS), None, few)
    with pytest.raises(TypeError, match="documents_mask must be a tensor, an array or a list of masks, not dict"):
        colbert_scores(QUERIES, DOCUMENTS, None, {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="queries_embeddings must be a tensor, an array or a list, not NoneType"):
        colbert_scores(None, DOCUMENTS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend must be one of"):
        colbert_scores(QUERIES, DOCUMENTS, backend="cublas")
    with pytest.raises(TypeError, match="documents_embeddings"):
        colbert_scores(QUERIES, np.array([["a"]]))
