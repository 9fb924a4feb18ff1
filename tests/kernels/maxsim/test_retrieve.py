"""`late_interaction.retrieve`: the best documents, candidates, what they are aligned with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels.inputs.blocks import FeatureBlocks
from crossret_kernels.late_interaction import explain, maxsim, retrieve
from crossret_kernels.topk import streamed as topk
from tests.kernels.maxsim.late import DOCUMENT_MASK, DOCUMENTS, EXPECTED, LAYOUTS, QUERIES


@pytest.mark.parametrize("block", [1, topk.BLOCK_SCORES])
def test_the_worst_documents(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smallest first, of equal scores the lower index, to the last bit what `maxsim` gives; NaN is seen before all."""
    monkeypatch.setattr(topk, "BLOCK_SCORES", block)
    documents = DOCUMENTS[[3, 1, 0, 1, 2, 3, 0]]
    scores = maxsim(QUERIES, documents, backend="cpu")
    expected = scores.sort(dim=1, stable=True)
    for k in (1, 3, 9):
        values, indices = retrieve(QUERIES, documents, k=k, largest=False, backend="cpu")
        assert torch.equal(values, expected.values[:, :k])
        assert torch.equal(indices, expected.indices[:, :k])
    documents[4, 2, 3] = torch.nan
    mask = torch.ones(7, 6, dtype=torch.bool)
    mask[[0, 6]] = False
    for empty, place in ((-torch.inf, slice(1, 3)), (torch.inf, slice(5, 7))):
        values, indices = retrieve(
            QUERIES, documents, k=7, document_mask=mask, empty_score=empty, largest=False, backend="cpu"
        )
        assert values[:, 0].isnan().all() and (indices[:, 0] == 4).all()
        assert (values[:, place] == empty).all() and (indices[:, place] == torch.tensor([0, 6])).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("largest", [True, False])
def test_candidates_alone_are_scored(layout: str, largest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any layout, with repeats and with fewer of some queries than of others; none of a query, too."""
    candidates = [[3, 0, 3], [], torch.tensor([2, 1], dtype=torch.int32)]
    padded = np.array([[3, 0, 3], [-1, -1, -1], [2, 1, -1]])
    end = -torch.inf if largest else torch.inf
    expected = torch.full((3, 4), end).double()
    for query, some in enumerate([[3, 0], [], [2, 1]]):
        expected[query, some] = EXPECTED[query, some]
    best, order = expected.sort(dim=1, descending=largest, stable=True)
    best, order = best[:, :3], order[:, :3].masked_fill(best[:, :3] == end, -1)
    for limit in (1, 2**13):
        monkeypatch.setattr("crossret_kernels.topk.candidates._PAIRS", limit)
        for own in (candidates, padded, torch.from_numpy(padded)):
            values, indices = retrieve(**LAYOUTS[layout], k=5, candidates=own, largest=largest)  # type: ignore[arg-type]
            torch.testing.assert_close(values, best.float())
            assert torch.equal(indices, order)
    assert torch.equal(retrieve(**LAYOUTS[layout], k=1, candidates=padded, largest=largest)[1], order[:, :1])


def test_candidates_of_a_file_are_read_alone(tmp_path: Path) -> None:
    """Documents in a file, in float16 and float64: scores are as wide as without candidates."""
    for dtype in (np.float16, np.float64):
        np.save(tmp_path / "documents.npy", DOCUMENTS.numpy().astype(dtype))
        documents = np.load(tmp_path / "documents.npy", mmap_mode="r")
        queries = QUERIES.numpy().astype(dtype)
        every, order = retrieve(queries, documents, k=4, normalize=True)
        values, indices = retrieve(queries, documents, k=4, normalize=True, candidates=np.tile(np.arange(4), (3, 1)))
        assert values.dtype == every.dtype
        torch.testing.assert_close(values, every)
        assert torch.equal(indices, order)


@pytest.mark.parametrize("direction", ["q2d", "d2q"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_retrieved_is_aligned(layout: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `explain` has it of the pairs found; −1 and 0 where a query has no more candidates."""
    sides: dict[str, Any] = {**LAYOUTS[layout], "direction": direction}
    for candidates in (None, [[3, 0, 3], [], [2, 1]]):
        for workspace in (1, 2**20):
            monkeypatch.setattr("crossret_kernels.maxsim.contributions.WORKSPACE_BYTES", workspace)
            made = retrieve(**sides, k=2, candidates=candidates, return_alignment=True)
            values, indices = retrieve(**sides, k=2, candidates=candidates)
            assert torch.equal(made.values, values) and torch.equal(made.indices, indices)
            there = (indices >= 0).nonzero()
            pairs = torch.stack([there[:, 0], indices[indices >= 0]], 1)
            expected = explain(**sides, pairs=pairs)
            width = made.places.size(2)
            for own, listed, empty in (
                (made.places, expected.places, -1),
                (made.similarities, expected.similarities, 0),
            ):
                assert torch.equal(own[there[:, 0], there[:, 1]], listed[:, :width])
                assert (listed[:, width:] == empty).all()
                assert (own[indices < 0] == empty).all()


def test_an_alignment_reads_what_was_found_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "documents.npy", DOCUMENTS.numpy())
    documents = np.load(tmp_path / "documents.npy", mmap_mode="r")
    read: list[int] = []
    take = FeatureBlocks.take

    def taken(self: FeatureBlocks, items: Tensor) -> Any:
        if self.values is documents:
            read.extend(items.tolist())
        return take(self, items)

    monkeypatch.setattr(FeatureBlocks, "take", taken)
    _, indices, places, _ = retrieve(QUERIES.numpy(), documents, k=1, return_alignment=True)
    assert read == indices.unique().tolist() and len(read) < len(documents)
    for query, document in enumerate(indices[:, 0].tolist()):
        assert torch.equal(places[query, 0], (QUERIES[query] @ DOCUMENTS[document].T).argmax(1))


def test_an_empty_document_found_is_aligned_with_nothing() -> None:
    mask = DOCUMENT_MASK.clone()
    mask[2] = False
    for direction in ("q2d", "d2q"):
        made = retrieve(
            QUERIES, DOCUMENTS, k=4, document_mask=mask, empty_score=torch.inf, direction=direction,
            return_alignment=True,
        )  # fmt: skip
        assert (made.indices[:, 0] == 2).all()
        assert (made.places[:, 0] == -1).all() and not made.similarities[:, 0].any()
        assert (made.places[:, 1:] >= 0).any()
