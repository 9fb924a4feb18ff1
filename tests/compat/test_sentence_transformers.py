"""sentence-transformers' scores without that package: against its formulas, and where they differ on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.compat import sentence_transformers as compat
from crossret.compat.sentence_transformers import (
    colbert_kd_scores,
    colbert_scores,
    colbert_scores_pairwise,
    maxsim,
    maxsim_pairwise,
    mean_maxsim,
    mean_maxsim_pairwise,
)
from tests.compat.oracles import DIM, chosen, embeddings, every, some

QUERIES, DOCUMENTS = embeddings(3, 5), embeddings(4, 6, seed=1)
QUERY_MASK, MASK = some(3, 5), some(4, 6, seed=1)
ITEMS, OTHERS = chosen(QUERIES, QUERY_MASK), chosen(DOCUMENTS, MASK)
EXPECTED = every(ITEMS, OTHERS).float()
COUNTS = QUERY_MASK.sum(1)
LAYOUTS: dict[str, tuple[Any, ...]] = {
    "masks": (QUERIES, DOCUMENTS, QUERY_MASK, MASK),
    "masks of floats": (QUERIES, DOCUMENTS, QUERY_MASK.float(), MASK.to(torch.int32)),
    "lists of masks": (QUERIES, DOCUMENTS, list(QUERY_MASK), [own.numpy() for own in MASK]),
    "arrays": (QUERIES.numpy(), DOCUMENTS.numpy(), QUERY_MASK.numpy(), MASK.numpy()),
    "lists": (ITEMS, OTHERS),
    "lists of arrays": ([item.numpy() for item in ITEMS], [item.numpy() for item in OTHERS]),
    "lists and masks": (list(QUERIES), list(DOCUMENTS), QUERY_MASK, MASK),
    "zeros": (QUERIES * QUERY_MASK[..., None], DOCUMENTS * MASK[..., None]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    torch.testing.assert_close(maxsim(*LAYOUTS[layout]), EXPECTED)
    torch.testing.assert_close(mean_maxsim(*LAYOUTS[layout]), EXPECTED / COUNTS[:, None])
    torch.testing.assert_close(mean_maxsim(*LAYOUTS[layout], length_normalize=False), EXPECTED)
    queries, documents, *masks = LAYOUTS[layout]
    pairs = queries, documents[:3], *(own[:3] for own in masks)
    torch.testing.assert_close(maxsim_pairwise(*pairs), EXPECTED.diagonal())
    torch.testing.assert_close(mean_maxsim_pairwise(*pairs), EXPECTED.diagonal() / COUNTS)


def test_a_single_item() -> None:
    scores = maxsim(QUERIES[0], DOCUMENTS[1].numpy(), QUERY_MASK[0], MASK[1])
    torch.testing.assert_close(scores, EXPECTED[:1, 1:2])
    torch.testing.assert_close(maxsim_pairwise(QUERIES[0], DOCUMENTS[1], QUERY_MASK[0], MASK[1]), EXPECTED[0, 1:2])


def test_documents_without_tokens() -> None:
    mask = MASK.clone()
    mask[1] = False
    for documents, own in ((DOCUMENTS, mask), (DOCUMENTS * mask[..., None], None), (chosen(DOCUMENTS, mask), None)):
        scores = maxsim(QUERIES, documents, QUERY_MASK, own)
        assert (scores[:, 1] == -1e9).all()
        torch.testing.assert_close(scores[:, [0, 2, 3]], EXPECTED[:, [0, 2, 3]])
    torch.testing.assert_close(mean_maxsim(ITEMS, chosen(DOCUMENTS, mask))[:, 1], -1e9 / COUNTS)
    assert maxsim_pairwise(QUERIES[1:2], DOCUMENTS[1:2], None, mask[1:2]).tolist() == [-1e9]
    assert (maxsim(ITEMS, [torch.zeros(0, DIM)] * 2) == -1e9).all()
    assert maxsim(QUERIES[0], torch.zeros(0, DIM)).tolist() == [[-1e9]]
    assert maxsim(torch.zeros(1, 2, DIM), DOCUMENTS, None, mask).tolist() == [[0, -1e9, 0, 0]]


def test_no_items() -> None:
    assert maxsim([], OTHERS).shape == (0, 4)
    assert maxsim(ITEMS, torch.zeros(0, 2, DIM)).shape == (3, 0)
    assert maxsim_pairwise([], []).shape == (0,)
    assert maxsim([], list(DOCUMENTS.double())).dtype == torch.float64
    stacked = torch.zeros(3, 2, 4, DIM)
    assert colbert_scores(QUERIES, stacked[:, :0]).shape == (3, 0)
    assert colbert_kd_scores(QUERIES, stacked[:, :0]).shape == (3, 0)
    with pytest.raises(ValueError, match="a and b must hold the same number of items to score as pairs, got 3 and 4"):
        maxsim_pairwise(ITEMS, OTHERS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8])
def test_scores_are_float32_and_of_float64_that(dtype: torch.dtype) -> None:
    queries, documents = (QUERIES * 4).to(dtype), (DOCUMENTS * 4).to(dtype)
    expected = every(list(queries), list(documents))
    expected = expected if dtype == torch.float64 else expected.float()
    exact = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-4}
    for mask in (None, torch.ones(4, 6, dtype=torch.bool)):
        torch.testing.assert_close(maxsim(queries, documents, None, mask), expected, **exact)
        torch.testing.assert_close(mean_maxsim(queries, documents, None, mask), expected / 5, **exact)


def test_stacked_documents() -> None:
    stacked, mask = torch.stack([DOCUMENTS, DOCUMENTS.flip(0)], 1), torch.stack([MASK, MASK.flip(0)], 1)
    expected = torch.stack([EXPECTED, EXPECTED.flip(1)], 2).flatten(1)
    torch.testing.assert_close(colbert_scores(QUERIES, stacked, queries_mask=QUERY_MASK, documents_mask=mask), expected)
    scores = colbert_scores(list(QUERIES), list(stacked), QUERY_MASK.numpy(), list(mask), length_normalize=True)
    torch.testing.assert_close(scores, expected / COUNTS[:, None])
    own = torch.stack([EXPECTED.diagonal(), EXPECTED.flip(1).diagonal()], 1)
    scores = colbert_kd_scores(QUERIES, stacked[:3], queries_mask=QUERY_MASK, documents_mask=mask[:3])
    torch.testing.assert_close(scores, own)
    mask[0, 1] = False
    scores = colbert_kd_scores(QUERIES, stacked[:3] * mask[:3, ..., None], QUERY_MASK)
    assert scores[0, 1] == -1e9
    torch.testing.assert_close(scores[1:], own[1:])
    scores = colbert_scores_pairwise(QUERIES, DOCUMENTS[:3], queries_mask=QUERY_MASK, documents_mask=MASK[:3])
    torch.testing.assert_close(scores, EXPECTED.diagonal())
    with pytest.raises(ValueError, match="documents_embeddings must be"):
        colbert_scores(QUERIES, DOCUMENTS)


def test_gradients() -> None:
    leaves = [QUERIES.clone().requires_grad_(), DOCUMENTS.clone().requires_grad_()]
    mask = MASK.clone()
    mask[1] = False
    scores = mean_maxsim(*leaves, QUERY_MASK, mask)
    (scores * (scores > -1e8)).square().sum().backward()
    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    others = chosen(doubles[1], mask)
    expected = every(chosen(doubles[0], QUERY_MASK), [others[0], *others[2:]]) / COUNTS[:, None]
    expected.square().sum().backward()
    for leaf, double in zip(leaves, doubles, strict=True):
        assert leaf.grad is not None and double.grad is not None
        torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-4, atol=1e-4)


def test_documents_move_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here to a device that holds no values: what arrives there is recorded in place of scores."""
    arrived: list[tuple[int, ...]] = []

    def recorded(queries: Any, documents: Any, *_masks: Any, **_options: Any) -> Tensor:
        assert queries.is_meta and documents.is_meta
        arrived.append((len(queries), len(documents)))
        return torch.zeros(len(queries), len(documents))

    monkeypatch.setattr(compat, "score_all", recorded)
    scores = maxsim(QUERIES, DOCUMENTS, device="meta", chunk_elements=3 * 6 * DIM)
    assert arrived == [(3, 3), (3, 1)]
    assert scores.shape == (3, 4) and scores.device.type == "cpu"


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"a_mask\[0, 1\] is 2"):
        maxsim(QUERIES, DOCUMENTS, QUERY_MASK * 0 + torch.tensor([0, 2, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"b_mask must have shape \(4, 6\), got \(4, 7\): it covers 7 tokens, but"):
        maxsim(QUERIES, DOCUMENTS, None, torch.ones(4, 7))
    with pytest.raises(TypeError, match="must agree"):
        maxsim(QUERIES, DOCUMENTS.bfloat16())
    with pytest.raises(ValueError, match="documents_embeddings is an empty list"):
        colbert_scores(QUERIES, [])
    with pytest.raises(ValueError, match=r"documents_embeddings\[1\] has shape \(1, 5, 8\), but"):
        colbert_kd_scores(QUERIES[:2], [DOCUMENTS[:1], DOCUMENTS[:1, 1:]])
