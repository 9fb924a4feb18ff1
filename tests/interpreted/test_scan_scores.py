"""`scan_scores` by backend "triton", held to the checks of tests/kernels/scan_checks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention.triton import forward
from crossret_kernels.gpu.tuning import Attention
from tests.kernels.scan_checks.agreement import Agreement
from tests.kernels.scan_checks.calls import Calls
from tests.kernels.scan_checks.gradients import Gradients
from tests.kernels.scan_checks.kernels import Kernels, batch_of
from tests.kernels.scan_checks.not_finite import NotFinite

USUAL = {"TILE": Attention.TILE, "BLOCK": Attention.BLOCK}
TRITON = Kernels(
    "triton",
    modules=(Attention,),
    least={"CELL_BYTES": 1, "ROW_BYTES": 1},
    apart={"GRAM_BYTES": 1},
    runs={"LISTED_BYTES": 40_000},
)


@pytest.fixture(scope="module")
def kernels() -> Iterator[Kernels]:
    """A few items take several tiles, and longer ones several blocks of them."""
    with TRITON.sizes(TILE=32, BLOCK=16):
        yield TRITON


class TestAgreement(Agreement):
    @pytest.mark.parametrize("rows", [(129, 3), (2, 140)])
    def test_items_longer_than_the_usual_tile(self, kernels: Kernels, rows: tuple[int, int]) -> None:
        with kernels.sizes(**USUAL):
            kernels.check(batch_of(2, 2, 8, rows), raw_feature_norm="l1norm")

    def test_empty_slots_take_no_attended_vectors(self, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their even weights cancel these regions, as the word's do not; the long way takes long, and for nothing."""
        region = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(0))
        regions = torch.cat([region, -region], 1)
        monkeypatch.setattr(forward, "attended_vectors", None)
        assert scan_scores(regions, region, backend=kernels.backend).isfinite().all()


class TestNotFinite(NotFinite): ...


class TestGradients(Gradients): ...


class TestCalls(Calls):
    def test_elements_past_two_to_the_31(self, kernels: Kernels) -> None:
        """Rows lie 600 million elements apart in memory that is never touched in between."""
        apart = 600_000_000
        values = torch.empty(4 * apart + 8, dtype=torch.float16)
        regions = values.as_strided((5, 1, 8), (apart, apart, 1))
        words = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)).half()
        near = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(1)).half()
        regions.copy_(near)
        for direction in ("t2i", "i2t"):
            scores = kernels.score(regions, words, direction=direction)
            assert torch.equal(scores, kernels.score(near, words, direction=direction))
