"""colpali-engine's scores without that package: against its formulas, and where they differ on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.compat import colpali
from crossret.compat.colpali import maxsim_inbatch, maxsim_kd, score_multi_vector
from tests.compat.oracles import chosen, embeddings, every, some

MASK = some(4, 6, seed=1)
QUERIES, DOCUMENTS = embeddings(3, 5), embeddings(4, 6, seed=1) * MASK[..., None]
EXPECTED = every(list(QUERIES), chosen(DOCUMENTS, MASK)).float()


def test_padding_never_wins() -> None:
    torch.testing.assert_close(maxsim_inbatch(QUERIES, DOCUMENTS), EXPECTED)
    places = torch.tensor([[0, 1], [2, 3], [3, 1]])
    torch.testing.assert_close(maxsim_kd(QUERIES, DOCUMENTS[places]), EXPECTED.gather(1, places))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scores_of_processors(dtype: torch.dtype) -> None:
    queries, documents = QUERIES.to(dtype), DOCUMENTS.to(dtype)
    expected = every(list(queries), chosen(documents, MASK)).float()
    layouts: list[Any] = [documents, list(documents), chosen(documents, MASK)]
    for passages in layouts:
        scores = score_multi_vector(list(queries), passages, batch_size=2, device="cpu")
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_passages_move_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here to a device that holds no values: what arrives there is recorded in place of scores."""
    arrived: list[int] = []

    def recorded(queries: Any, passages: Any, *_masks: Any, **_options: Any) -> Tensor:
        arrived.append(len(passages))
        return torch.zeros(len(queries), len(passages))

    monkeypatch.setattr(colpali, "maxsim", recorded)
    assert score_multi_vector(list(QUERIES), list(DOCUMENTS), batch_size=3, device="meta").shape == (3, 4)
    assert arrived == [3, 1]


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="No queries"):
        score_multi_vector([], DOCUMENTS)
    with pytest.raises(ValueError, match="No passages"):
        score_multi_vector(QUERIES, [])
    with pytest.raises(ValueError, match="doc must be"):
        maxsim_kd(QUERIES, DOCUMENTS)
    for several in (maxsim_inbatch, score_multi_vector):
        with pytest.raises(ValueError, match=r"must be \(n_.*, L, D\), got shape \(3, 1, 6, 8\)"):
            several(QUERIES, DOCUMENTS[:3, None])
