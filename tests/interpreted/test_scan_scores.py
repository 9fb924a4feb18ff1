"""`scan_scores` by backend "triton", held to the checks of tests/kernels/cross_attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton.language as tl

from crossret_kernels import scan_scores
from crossret_kernels.cross_attention.triton import forward, pooling
from crossret_kernels.gpu.tuning import Attention
from tests.interpreted.programs import ORDERS, programs_share_nothing
from tests.kernels.cross_attention.agreement import Agreement
from tests.kernels.cross_attention.calls import Calls
from tests.kernels.cross_attention.gradients import Gradients
from tests.kernels.cross_attention.kernels import DIRECTIONS, NO_NUMBERS, Kernels, batch_of
from tests.kernels.cross_attention.not_finite import NotFinite, check_gradients_beside_nan
from tests.kernels.tolerance import DEFAULTS, well_posed

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

    @pytest.mark.parametrize(
        ("options", "listed"),
        [
            ({"direction": "t2i", "focal": True, "lambda_softmax": 20.0}, False),
            ({"direction": "i2t", "focal": True, "lambda_softmax": 20.0, "raw_feature_norm": "no_norm"}, True),
            ({"direction": "t2i", "raw_feature_norm": "minmax", "pooling": "lse"}, True),
            ({"direction": "i2t", "raw_feature_norm": "minmax", "threshold": 0.0, "normalize": True}, False),
            ({"direction": "t2i", "raw_feature_norm": "minmax", "threshold": 0.3, "focal": True}, False),
            ({"direction": "i2t", "relevance": "projection", "pooling": "max"}, False),
        ],
        ids=str,
    )
    def test_options_across_tiles_and_blocks(self, kernels: Kernels, options: dict[str, Any], listed: bool) -> None:
        """Beside items of one row, in as many runs as can be."""
        options = DEFAULTS | options
        pairs = torch.tensor([[0, 1], [1, 0], [0, 1]]) if listed else None
        longest = (18, 35) if options["direction"] == "t2i" else (35, 18)
        batch = batch_of(2, 2, longest=longest, pairs=pairs)
        batch.region_lengths[:], batch.word_lengths[:] = torch.tensor([longest[0], 1]), torch.tensor([1, longest[1]])
        assert well_posed(batch, options)
        with kernels.sizes(**(kernels.runs if listed else kernels.least)):
            kernels.check(batch, **options)

    @pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 1.0])
    def test_similarities_that_tie(self, kernels: Kernels, threshold: float | None) -> None:
        """Whole numbers in two blocks, of which several are the least, the greatest or at the threshold 0.5, or all
        agree.
        """
        words = torch.cat([torch.tensor([[-1.0, 3, 1, -1, 3]]).repeat(1, 4), torch.full((1, 20), 2.0)])[None]
        for rows in (20, 5):
            results = []
            for dtype, backend in ((torch.float32, kernels.backend), (torch.float64, "reference")):
                sides = [torch.eye(20, dtype=dtype)[None, :rows].requires_grad_(), words.to(dtype).requires_grad_()]
                scores = scan_scores(*sides, raw_feature_norm="minmax", threshold=threshold, backend=backend)
                results.append((scores, *torch.autograd.grad(scores.sum(), sides)))
            for ours, true in zip(*results, strict=True):
                torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-6)

    def test_focal_weights_that_are_equal_but_for_rounding_stay(self, kernels: Kernels) -> None:
        """Normalised similarities of one word are all 1."""
        regions, word = torch.rand(2, 18, 16, generator=torch.Generator().manual_seed(0)), torch.ones(1, 1, 16)
        plain, focal = (kernels.score(regions, word, lambda_softmax=20.0, focal=focal) for focal in (False, True))
        torch.testing.assert_close(focal, plain, rtol=1e-5, atol=0)

    def test_empty_slots_take_no_attended_vectors(self, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their even weights cancel these regions, as the word's do not; the long way takes long, and for nothing."""
        region = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(0))
        regions = torch.cat([region, -region], 1)
        monkeypatch.setattr(pooling, "recompute_cancelled", None)
        assert scan_scores(regions, region, backend=kernels.backend).isfinite().all()

    @pytest.mark.parametrize(
        ("longest", "norm", "others"),
        [
            ((18, 3), "l2norm", {}),
            ((18, 3), "no_norm", {"normalize": True, "focal": True}),
            ((3, 40), "clipped_l1norm", {"normalize": True}),
            ((3, 40), "softmax", {"relevance": "projection"}),
            ((18, 3), "minmax", {"threshold": 0.3}),
        ],
        ids=str,
    )
    def test_relevances_made_the_long_way(
        self,
        kernels: Kernels,
        longest: tuple[int, int],
        norm: str,
        others: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """All of them, as of attended vectors that cancel: by several blocks of contexts, and tiles of queries."""
        monkeypatch.setattr(forward, "CANCELLED", tl.constexpr(1e9))
        pairs = torch.tensor([[0, 1], [2, 0]]) if norm == "l2norm" else None
        batch = batch_of(3, 2, 8, longest, pairs=pairs)
        with programs_share_nothing():
            kernels.check(batch, raw_feature_norm=norm, pooling="lse", **others)


class TestNotFinite(NotFinite):
    @NO_NUMBERS
    @pytest.mark.parametrize("order", ORDERS, indirect=True)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    @DIRECTIONS
    def test_gradients_beside_nan_in_every_order(self, kernels: Kernels, direction: str, dtype: torch.dtype) -> None:
        """NaN of an item passes into no other's, whichever program comes first."""
        check_gradients_beside_nan(kernels, direction, dtype)


class TestGradients(Gradients):
    @pytest.mark.parametrize(
        ("direction", "longest", "listed"),
        [
            ("t2i", (6, 5), False),
            ("t2i", (6, 5), True),
            ("i2t", (17, 5), False),
            ("i2t", (17, 5), True),
            ("t2i", (18, 3), False),
        ],
        ids=str,
    )
    def test_programs_share_nothing(
        self, kernels: Kernels, direction: str, longest: tuple[int, int], listed: bool
    ) -> None:
        """Of items that share tiles and blocks, that take several, and that are empty."""
        batch = batch_of(3, 4, 8, longest).to(torch.float32)
        lengths = [torch.tensor(rows) for rows in ([longest[0], 0, 3], [2, longest[1], 0, 3])]
        pairs = torch.tensor([[0, 1], [1, 0], [2, 3], [0, 2], [0, 1]]) if listed else None
        sides = [batch.regions.requires_grad_(), batch.words.requires_grad_()]
        with programs_share_nothing():
            scores = kernels.score(*sides, *lengths, direction=direction, pairs=pairs, empty_score=0.0)
            scores.sum().backward()


class TestCalls(Calls): ...
