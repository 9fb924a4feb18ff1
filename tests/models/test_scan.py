"""SCAN: scores of single pairs from the paper's equations in float64; norms, regions kept, loss by loops, options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.models import Scan, ScanConfig
from crossret_kernels import scan_scores
from tests.compat import published
from tests.models.batch import FEATURES, LENGTHS, REGION_LENGTHS, SIZES, double, encode, make

pytestmark = pytest.mark.usefixtures("one_thread")


def pair_by_hand(
    regions: Tensor, words: Tensor, direction: str, lambda_softmax: float, aggregation: str, lambda_lse: float
) -> float:
    """Equations 1 to 8 for one image (R, D) and one caption (W, D), with LeakyReLU(0.1) for the clip."""
    options = published.options(direction, aggregation=aggregation)
    options.lambda_softmax, options.lambda_lse = lambda_softmax, lambda_lse
    return float(published.score(regions, words, options))


def sum_max_by_hand(regions: Tensor, words: Tensor, direction: str) -> float:
    """Equations 9 and 10."""
    return float((regions @ words.T).amax(0 if direction == "t2i" else 1).sum())


_T2I_AVG, _T2I_LSE, _I2T_AVG = ("t2i", 9, "Mean", 0), ("t2i", 9, "LogSumExp", 6), ("i2t", 4, "Mean", 0)


# Tables 1 to 3: a preset with its directions, λ₁, pooling and λ₂.
@pytest.mark.parametrize(
    ("preset", "fields", "directions"),
    [
        ("f30k_t2i_lse", {}, [_T2I_LSE]),
        ("f30k_t2i_avg", {}, [_T2I_AVG]),
        ("f30k_i2t_lse", {}, [("i2t", 4, "LogSumExp", 5)]),
        ("f30k_i2t_avg", {}, [_I2T_AVG]),
        ("f30k_t2i_avg_i2t_lse_joint", {}, [_T2I_AVG, ("i2t", 4, "LogSumExp", 5)]),
        ("coco_i2t_lse", {}, [("i2t", 4, "LogSumExp", 20)]),
        ("coco_t2i_lse_i2t_avg_joint", {}, [_T2I_LSE, _I2T_AVG]),
        ("coco_t2i_avg_i2t_lse_joint", {}, [_T2I_AVG, ("i2t", 4, "LogSumExp", 20)]),
        ("f30k_t2i_avg", {"cross_attention": "ensemble"}, [_T2I_AVG, _I2T_AVG]),  # by one product
        ("f30k_t2i_lse", {"cross_attention": "ensemble", "i2t_pooling": "lse"}, [_T2I_LSE, ("i2t", 4, "LogSumExp", 5)]),
        ("f30k_t2i_avg", {"pooling": "sum"}, [("t2i", 9, "Sum", 0)]),
        ("f30k_i2t_avg", {"pooling": "max"}, [("i2t", 4, "Max", 0)]),
        ("f30k_sum_max_t2i", {}, [("t2i",)]),
        ("f30k_sum_max_i2t", {}, [("i2t",)]),
    ],
)
def test_presets_score_as_the_tables_say(
    preset: str, fields: dict[str, Any], directions: list[tuple[Any, ...]]
) -> None:
    torch.manual_seed(0)
    model = double(Scan(ScanConfig.preset(preset, **SIZES, **fields)))
    with torch.no_grad():
        images, captions = encode(model)
        scores = model.score(images, captions)
        shares = model.contributions(images, captions).parts
    assert [part.name for part in shares] == [one[0] for one in directions]
    for image, regions in enumerate(images.sequences):
        for caption, words in enumerate(captions.sequences):
            sides = regions[: REGION_LENGTHS[image]], words[: LENGTHS[caption]]
            parts = [(pair_by_hand if len(one) == 4 else sum_max_by_hand)(*sides, *one) for one in directions]
            assert scores[image, caption].item() == pytest.approx(sum(parts) / len(parts), rel=1e-6)
            if image == caption:
                for share, part in zip(shares, parts, strict=True):
                    assert share.values[image].sum().item() == pytest.approx(part / len(parts), rel=1e-6)


@pytest.mark.parametrize("fields", [{"raw_feature_norm": "minmax"}, {"focal": True}], ids=str)
def test_attention_of_later_papers_reaches_the_score(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = double(Scan(ScanConfig(**SIZES, **fields)))
    with torch.no_grad():
        images, captions = encode(model)
        scores, usual = model.score(images, captions), double(Scan(ScanConfig(**SIZES))).score(images, captions)
    sides = images.sequences, captions.sequences, REGION_LENGTHS, LENGTHS
    torch.testing.assert_close(scores, scan_scores(*sides, **fields, backend="reference"))
    assert not torch.allclose(scores, usual)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_shares_of_sum_max_are_the_largest_similarities(direction: str) -> None:
    model = double(make("scan", cross_attention=f"sum_max_{direction}"))
    images, captions = encode(model)
    (part,), (attention,) = model.contributions(images, captions).parts, model.attention(images, captions)
    for pair, (regions, words) in enumerate(zip(REGION_LENGTHS.tolist(), LENGTHS.tolist(), strict=True)):
        similarities = images.sequences[pair, :regions] @ captions.sequences[pair, :words].T
        best = (similarities if direction == "i2t" else similarities.T).max(1)
        count = len(best.values)
        for ours in (part.values, part.relevances):
            torch.testing.assert_close(ours[pair, :count], best.values)
        assert not part.values[pair, count:].any()
        taken = attention.weights[pair] if direction == "t2i" else attention.weights[pair].T
        assert taken[:count].nonzero().tolist() == [[place, other] for place, other in enumerate(best.indices.tolist())]


def test_only_the_first_regions_are_kept() -> None:
    full, cut = make("scan"), make("scan", region_count=2)
    kept = cut.encode_images(FEATURES, torch.tensor([1, 4, 3]))
    assert kept.lengths.tolist() == [1, 2, 2]
    assert torch.equal(kept.sequences, full.encode_images(FEATURES[:, :2]).sequences)
    assert make("scan", region_count=9).encode_images(FEATURES).lengths.tolist() == [4, 4, 4]


def test_attention_options_are_of_one_of_the_model_s_directions() -> None:
    config = ScanConfig(**SIZES, cross_attention="i2t", lambda_softmax=7.0, clip_slope=0.0)
    options = config.attention_options("i2t")
    assert (options["lambda_softmax"], options["clip_slope"]) == (7.0, 0.0)
    with pytest.raises(ValueError, match="direction 't2i': this model's cross_attention is 'i2t'"):
        config.attention_options("t2i")
