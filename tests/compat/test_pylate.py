"""PyLate's scores without PyLate: against its formulas where both agree, and where they differ on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from crossret.compat import pylate
from crossret.compat.pylate import colbert_kd_scores, colbert_scores, colbert_scores_pairwise
from tests.compat.oracles import chosen, embeddings, every, some

QUERIES, DOCUMENTS = embeddings(3, 5), embeddings(4, 6, seed=1)
QUERY_MASK, MASK = some(3, 5), some(4, 6, seed=1)
EXPECTED = every(chosen(QUERIES, QUERY_MASK), chosen(DOCUMENTS, MASK)).float()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64, torch.bfloat16])
def test_masks(dtype: torch.dtype) -> None:
    scores = colbert_scores(QUERIES, DOCUMENTS, QUERY_MASK.to(dtype), MASK.to(dtype))
    torch.testing.assert_close(scores, EXPECTED)


def test_masked_rows_never_win() -> None:
    """PyLate multiplies similarities by the mask: of negative ones a masked row's 0 is the largest."""
    queries, documents = QUERIES.abs(), -DOCUMENTS.abs()
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
    expected = torch.stack([EXPECTED, EXPECTED.flip(1)], 2).flatten(1)
    for documents in (stacked, list(stacked)):
        torch.testing.assert_close(colbert_scores(QUERIES, documents, QUERY_MASK, mask), expected)


def test_lists() -> None:
    queries, documents = chosen(QUERIES, QUERY_MASK), chosen(DOCUMENTS, MASK)
    torch.testing.assert_close(colbert_scores(queries, documents), EXPECTED)
    torch.testing.assert_close(colbert_scores_pairwise(queries, documents[:3]), EXPECTED.diagonal())
    padded = [item * own[:, None] for item, own in zip(DOCUMENTS, MASK, strict=True)]
    torch.testing.assert_close(colbert_scores(queries, padded), EXPECTED)


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
    own, mask = (torch.stack([side[[0, 1]], side[[2, 3]], side[[3, 1]]]) for side in (DOCUMENTS, MASK))
    scores = colbert_kd_scores(QUERIES, own, QUERY_MASK, mask, backend)
    torch.testing.assert_close(scores, EXPECTED.gather(1, torch.tensor([[0, 1], [2, 3], [3, 1]])))
    expected = every(list(QUERIES), list(DOCUMENTS[:3])).diagonal().float()
    torch.testing.assert_close(colbert_scores_pairwise(QUERIES, DOCUMENTS[:3], backend=backend), expected)
    assert named == [backend if backend in ("torch", "reference") else None] * 2


def test_mistakes() -> None:
    mask = MASK.float()
    mask[2, 3] = 0.5
    with pytest.raises(ValueError, match=r"documents_mask\[2, 3\] is 0.5"):
        colbert_scores(QUERIES, DOCUMENTS, None, mask)
    for few in ([], [MASK[0]]):  # a single one would do for all
        with pytest.raises(ValueError, match=f"documents_mask holds {len(few)} masks, but there are 4 items"):
            colbert_scores(QUERIES, list(DOCUMENTS), None, few)
    with pytest.raises(ValueError, match="backend must be one of"):
        colbert_scores(QUERIES, DOCUMENTS, backend="cublas")
    with pytest.raises(ValueError, match="3 queries and 4 documents"):
        colbert_scores_pairwise(QUERIES, DOCUMENTS)
    with pytest.raises(ValueError, match="documents_embeddings must be"):
        colbert_kd_scores(QUERIES, DOCUMENTS)
