"""Gram factors that are kept with a corpus: what they are, and scores by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels import ScanOptions, UnsupportedByBackend, scan_factors, scan_scores, scan_topk
from tests.kernels.strategies import DEGENERACIES, Features, examples, features, scan_options
from tests.kernels.tolerance import EPS, ISAS, Expectation, cpu_isa, well_posed

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def with_factors(*sides: Any, **options: Any) -> Tensor:
    """`scan_scores` by factors that were made before, without gradients."""
    of_words = options["direction"] == "i2t"
    own = sides[of_words::2]
    mask = options.get("word_mask" if of_words else "region_mask")
    factors = scan_factors(*own, mask=mask, normalize=options["normalize"])
    return scan_scores(*sides, **options, factors=factors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@examples(30)
@given(batch=features(DEGENERACIES), options=scan_options(), layout=st.sampled_from(("padded", "packed", "list")))
def test_scores_are_those_of_the_formulas(
    dtype: torch.dtype, batch: Features, options: dict[str, Any], layout: str
) -> None:
    batch = batch.to(dtype).to(torch.float64)
    assume(well_posed(batch, options))
    # Rounded are the Gram matrix and the factor that is made of it, of which eager has the first alone.
    expected = Expectation.of(scan_scores, batch, dtype, unit=32 * EPS, **options)
    sides = expected.batch.to(dtype).arguments(layout)
    for isa in [*ISAS, *({"amx_emulated"} & {*torch.ops.crossret.cpu_isas().split()})]:
        with cpu_isa(isa), torch.no_grad():
            scores = with_factors(*sides, pairs=batch.pairs, **options, backend="cpu")
        expected.accept((scores.double(), *expected.truth[1:]), isa)


@pytest.mark.parametrize(("rows", "dim"), [(31, 3), (9, 5), (7, 40)])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_others_make_up(isa: str, rows: int, dim: int) -> None:
    """What is left of them beside those is rounding, which no row of a factor may be made of."""
    options: dict[str, Any] = {"lambda_softmax": 4.0, "normalize": True, "direction": "t2i"}
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        regions, words = (torch.rand(2, n, dim, generator=generator) for n in (rows, 40))
        if rows < dim:
            regions[:, rows // 2 + 1 :] = regions[:, : rows // 2]
        true = scan_scores(regions.double(), words.double(), backend="reference", **options)
        with cpu_isa(isa):
            for made in (scan_scores, with_factors):
                torch.testing.assert_close(
                    made(regions, words, backend="cpu", **options).double(), true, rtol=0, atol=1e-6
                )


def batch(n_images: int = 30, n_captions: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    regions, words = (
        torch.randn(n_images, 36, 24, generator=generator),
        torch.randn(n_captions, 9, 24, generator=generator),
    )
    lengths = (torch.randint(0, most + 1, (n,), generator=generator) for n, most in ((n_images, 36), (n_captions, 9)))
    return regions, words, *lengths


def test_a_factor_is_of_the_gram_matrix_of_its_item() -> None:
    regions, _, lengths, _ = batch()
    factors = scan_factors(regions, lengths)
    assert factors.shape == (30, 36, 48)
    for item, length in enumerate(lengths.tolist()):
        rows = regions[item, :length].double()
        own = factors[item].double()
        assert not own.tril(-1).any()
        assert not own[length:].any()
        assert not own[:, length:].any()
        torch.testing.assert_close((own.T @ own)[:length, :length], rows @ rows.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("query", ["caption", "image"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_a_search_by_factors_finds_the_same(
    direction: str, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of a few items, from features and factors in files."""
    monkeypatch.setattr("crossret_kernels.inputs.blocks.BLOCK_BYTES", 4 * 36 * 24 * 4)
    regions, words, region_lengths, word_lengths = batch()
    own = (regions, region_lengths) if direction == "t2i" else (words, word_lengths)
    options = {"k": 5, "direction": direction, "query": query, "empty_score": -1.0, "backend": "cpu"}
    values, indices = scan_topk(regions, words, region_lengths, word_lengths, **options)
    np.save(tmp_path / "factors.npy", scan_factors(*own).numpy())
    np.save(tmp_path / "regions.npy", regions.numpy())
    by_factors = scan_topk(
        np.load(tmp_path / "regions.npy", mmap_mode="r"), words, region_lengths, word_lengths, **options,
        factors=np.load(tmp_path / "factors.npy", mmap_mode="r"),
    )  # fmt: skip
    torch.testing.assert_close(by_factors[0], values, rtol=1e-5, atol=1e-5)
    assert (by_factors[1] == indices).float().mean() > 0.95  # of equal scores, but for rounding, either may be first


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_listed_pairs_and_masks(direction: str) -> None:
    regions, words, _, _ = batch()
    generator = torch.Generator().manual_seed(2)
    masks = {
        "region_mask": torch.rand(30, 36, generator=generator) < 0.7,
        "word_mask": torch.ones(40, 9, dtype=torch.bool),
    }
    sides = regions, words, None, None
    for pairs in (None, torch.tensor([[3, 4], [29, 0], [3, 39], [3, 4]])):
        options: dict[str, Any] = {"direction": direction, "pairs": pairs, "normalize": True, **masks}
        torch.testing.assert_close(
            with_factors(*sides, **options, backend="cpu"), scan_scores(*sides, **options, backend="cpu")
        )


def test_other_backends_make_their_own() -> None:
    sides = batch()
    options = {"direction": "t2i", "normalize": False, "empty_score": 0.0}
    assert torch.equal(
        with_factors(*sides, **options, backend="torch"), scan_scores(*sides, **options, backend="torch")
    )


def test_what_cannot_be_the_factors_raises() -> None:
    regions, words, _, _ = batch()
    factors = scan_factors(regions)
    for wrong in (factors[1:], factors[:, :35], factors[..., :20], factors[0]):
        with pytest.raises(ValueError, match="factors must be those"):
            scan_scores(regions, words, factors=wrong)
    with pytest.raises(ValueError, match="factors must be those"):
        scan_topk(regions, words, k=2, factors=factors[1:])
    with pytest.raises(TypeError, match="factors must be a float32 tensor"):
        scan_scores(regions, words, factors=factors.double())
    with pytest.raises(ValueError, match="factors serve scores without gradients"):
        scan_scores(regions.requires_grad_(), words, factors=factors)
    with pytest.raises(UnsupportedByBackend):
        scan_factors(regions.double())
    with pytest.raises(RuntimeError, match="factors must be those"):
        torch.ops.crossret.scan_scores_factored(
            factors[1:].contiguous(), regions.detach(), None, None, None, words, None, None, None,
            None, None, False, *ScanOptions(pooling="lse").codes,
        )  # fmt: skip


def test_opcheck() -> None:
    regions, words, region_lengths, _ = batch(3, 2)
    side = regions, None, region_lengths, None
    torch.library.opcheck(torch.ops.crossret.scan_factors.default, (*side, True, 36))
    factors = scan_factors(regions, region_lengths)
    torch.library.opcheck(
        torch.ops.crossret.scan_scores_factored.default,
        (factors, *side, words, None, None, None, None, 0.5, False, *ScanOptions(pooling="lse").codes),
    )
