"""Other packages' scores on a GPU: where they are made, and where they come back."""

from __future__ import annotations

import pytest
import torch

from crossret.compat import colpali, pylate, sentence_transformers
from tests.compat.oracles import chosen, embeddings, every, some
from tests.gpu.device import gpu

pytestmark = gpu

QUERIES, DOCUMENTS = embeddings(3, 5), embeddings(4, 6, seed=1)
QUERY_MASK, MASK = some(3, 5), some(4, 6, seed=1)
ITEMS, OTHERS = chosen(QUERIES, QUERY_MASK), chosen(DOCUMENTS, MASK)
EXPECTED = every(ITEMS, OTHERS).float()


def check(scores: torch.Tensor, device: str) -> None:
    assert scores.device.type == device
    torch.testing.assert_close(scores.cpu(), EXPECTED, rtol=1e-4, atol=1e-4)


def test_where_the_embeddings_are() -> None:
    queries, documents = QUERIES.cuda(), DOCUMENTS.cuda()
    check(pylate.colbert_scores(queries, documents, QUERY_MASK.cuda(), MASK.float().cuda()), "cuda")
    check(pylate.colbert_scores(queries, documents, QUERY_MASK, MASK), "cuda")
    check(sentence_transformers.maxsim(queries, documents, QUERY_MASK, MASK), "cuda")
    check(colpali.maxsim_inbatch(queries * QUERY_MASK.cuda()[..., None], documents * MASK.cuda()[..., None]), "cuda")
    own = documents[None, :2].expand(3, -1, -1, -1)
    scores = pylate.colbert_kd_scores(queries, own, QUERY_MASK.cuda(), MASK[None, :2].expand(3, -1, -1).cuda())
    torch.testing.assert_close(scores.cpu(), EXPECTED[:, :2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk_elements", [None, 100])
def test_sentence_transformers_devices(chunk_elements: int | None) -> None:
    """Scores are where the documents are, whatever made them; arrays go to the queries."""
    options = {"chunk_elements": chunk_elements}
    check(sentence_transformers.maxsim(ITEMS, OTHERS, device="cuda", **options), "cpu")
    check(sentence_transformers.maxsim(QUERIES.cuda(), DOCUMENTS, QUERY_MASK, MASK, **options), "cpu")
    arrays = [item.numpy() for item in OTHERS]
    check(sentence_transformers.maxsim([item.cuda() for item in ITEMS], arrays, **options), "cuda")
    pairs = sentence_transformers.maxsim_pairwise(ITEMS, OTHERS[:3], device="cuda", **options)
    torch.testing.assert_close(pairs, EXPECTED.diagonal(), rtol=1e-4, atol=1e-4)


def test_processors_give_scores_on_the_cpu() -> None:
    for device in ("cuda", None):
        check(colpali.score_multi_vector(ITEMS, OTHERS, batch_size=3, device=device), "cpu")
    check(colpali.score_multi_vector([item.cuda() for item in ITEMS], [item.cuda() for item in OTHERS]), "cpu")
