"""SCAN: options and presets, scores of single pairs from the paper's equations, loss, and input errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.models import MODELS, Scan, ScanConfig
from crossret.models.encoded import Encoded

SIZES: dict[str, Any] = {"image_dim": 6, "vocabulary_size": 11, "embed_dim": 8, "word_dim": 5}
FEATURES = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([5, 2, 3])


def scan(seed: int = 0, **fields: Any) -> Scan:
    torch.manual_seed(seed)
    return Scan(ScanConfig(**{**SIZES, **fields}))


def encode(model: Scan) -> tuple[Encoded, Encoded]:
    return model.encode_images(FEATURES), model.encode_captions(TOKENS, LENGTHS)


def pair_score(
    regions: Tensor, words: Tensor, direction: str, lambda_softmax: float, pooling: str, lambda_lse: float
) -> float:
    """Equations 1 to 8 for one image (R, D) and one caption (W, D) with LeakyReLU(0.1) for the clip, in float64."""
    regions, words = regions.double(), words.double()
    queries, contexts = (words, regions) if direction == "t2i" else (regions, words)
    similarity = contexts @ queries.T
    similarity = torch.where(similarity > 0, similarity, 0.1 * similarity)
    similarity = similarity / similarity.norm(dim=1, keepdim=True)
    relevances = []
    for index, query in enumerate(queries):
        attention = torch.softmax(lambda_softmax * similarity[:, index], dim=0)
        attended = attention @ contexts
        relevances.append((query @ attended / (query.norm() * attended.norm())).item())
    if pooling == "lse":
        return math.log(sum(math.exp(lambda_lse * r) for r in relevances)) / lambda_lse
    return {"avg": sum(relevances) / len(relevances), "sum": sum(relevances), "max": max(relevances)}[pooling]


def expected_scores(model: Scan, *directions: tuple[str, float, str, float]) -> Tensor:
    images, captions = encode(model)
    scores = torch.zeros(3, 3)
    for image in range(3):
        for caption in range(3):
            words = captions.sequences[caption, : LENGTHS[caption]]
            parts = [pair_score(images.sequences[image], words, *direction) for direction in directions]
            scores[image, caption] = sum(parts) / len(parts)
    return scores


@pytest.mark.parametrize(
    ("preset", "directions"),
    [
        ("f30k_t2i_lse", [("t2i", 9, "lse", 6)]),
        ("f30k_t2i_avg", [("t2i", 9, "avg", 0)]),
        ("f30k_i2t_lse", [("i2t", 4, "lse", 5)]),
        ("f30k_i2t_avg", [("i2t", 4, "avg", 0)]),
        ("f30k_t2i_avg_i2t_lse_joint", [("t2i", 9, "avg", 0), ("i2t", 4, "lse", 5)]),
        ("coco_t2i_lse", [("t2i", 9, "lse", 6)]),
        ("coco_t2i_avg", [("t2i", 9, "avg", 0)]),
        ("coco_i2t_lse", [("i2t", 4, "lse", 20)]),
        ("coco_i2t_avg", [("i2t", 4, "avg", 0)]),
        ("coco_t2i_lse_i2t_avg_joint", [("t2i", 9, "lse", 6), ("i2t", 4, "avg", 0)]),
        ("coco_t2i_avg_i2t_lse_joint", [("t2i", 9, "avg", 0), ("i2t", 4, "lse", 20)]),
    ],
)
def test_presets_score_as_tables_1_and_2_say(preset: str, directions: list[tuple[str, float, str, float]]) -> None:
    config = ScanConfig.preset(preset, **SIZES)
    torch.manual_seed(0)
    model = Scan(config)
    with torch.no_grad():
        torch.testing.assert_close(
            model.score(*encode(model)), expected_scores(model, *directions), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("pooling", ["sum", "max"])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_sum_and_max_pooling(direction: str, pooling: str) -> None:
    model = scan(cross_attention=direction, lambda_softmax=4.0, pooling=pooling)
    with torch.no_grad():
        expected = expected_scores(model, (direction, 4.0, pooling, 0))
        torch.testing.assert_close(model.score(*encode(model)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_sum_max_is_equations_9_and_10(direction: str) -> None:
    torch.manual_seed(0)
    model = Scan(ScanConfig.preset(f"f30k_sum_max_{direction}", **SIZES))
    with torch.no_grad():
        images, captions = encode(model)
        scores = model.score(images, captions)
        for image in range(3):
            for caption in range(3):
                similarity = images.sequences[image] @ captions.sequences[caption, : LENGTHS[caption]].T
                expected = similarity.amax(0 if direction == "t2i" else 1).sum()
                torch.testing.assert_close(scores[image, caption], expected, rtol=1e-5, atol=1e-5)


def test_pairs_are_entries_of_the_score_matrix() -> None:
    pairs = torch.tensor([[0, 2], [2, 1], [0, 2]])
    for way in ("t2i", "i2t", "ensemble", "sum_max_t2i", "sum_max_i2t"):
        model = scan(cross_attention=way)
        with torch.no_grad():
            images, captions = encode(model)
            expected = model.score(images, captions)[pairs[:, 0], pairs[:, 1]]
            torch.testing.assert_close(model.score(images, captions, pairs), expected, rtol=1e-5, atol=1e-6)


def test_norms_can_be_left_out() -> None:
    for image_norm in (True, False):
        for text_norm in (True, False):
            images, captions = encode(scan(image_norm=image_norm, text_norm=text_norm))
            ones = torch.ones(3)
            assert torch.allclose(images.sequences[:, 0].norm(dim=1), ones) == image_norm
            assert torch.allclose(captions.sequences[:, 0].norm(dim=1), ones) == text_norm


def test_only_the_first_regions_are_kept() -> None:
    full, cut = scan(), scan(region_count=2)
    kept = cut.encode_images(FEATURES, torch.tensor([1, 4, 3]))
    assert kept.lengths.tolist() == [1, 2, 2]
    assert torch.equal(kept.sequences, full.encode_images(FEATURES[:, :2]).sequences)
    assert scan(region_count=9).encode_images(FEATURES).lengths.tolist() == [4, 4, 4]


def test_padded_regions_do_not_count() -> None:
    model = scan(cross_attention="ensemble", i2t_pooling="lse")
    captions = model.encode_captions(TOKENS, LENGTHS)
    padded = FEATURES.clone()
    padded[1, 2:] = 1e6
    with torch.no_grad():
        score = model.score(model.encode_images(padded, torch.tensor([4, 2, 4])), captions)
        alone = model.score(model.encode_images(FEATURES[1:2, :2]), captions)
    torch.testing.assert_close(score[1:2], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("negatives", ["hardest", "sum"])
def test_loss_is_equation_11_or_12(negatives: str) -> None:
    model = scan(negatives=negatives, margin=0.3)
    images, captions = encode(model)
    scores = model.score(images, captions).detach()
    pool = max if negatives == "hardest" else sum
    expected = 0.0
    for i in range(3):
        others = [j for j in range(3) if j != i]
        expected += pool(max(0.0, 0.3 - scores[i, i].item() + scores[i, j].item()) for j in others)
        expected += pool(max(0.0, 0.3 - scores[i, i].item() + scores[j, i].item()) for j in others)
    terms = model.loss(images, captions)
    assert set(terms) == {"loss"}
    assert terms["loss"].item() == pytest.approx(expected, abs=1e-5)


def test_captions_of_one_image_are_not_negatives() -> None:
    model = scan(negatives="sum", margin=5.0)
    images = model.encode_images(FEATURES[[0, 0, 1]])
    captions = model.encode_captions(TOKENS, LENGTHS)
    scores = model.score(images, captions).detach()
    expected = sum(
        max(0.0, 5.0 - scores[i, i].item() + scores[pair].item())
        for i, j in ((0, 2), (1, 2), (2, 0), (2, 1))
        for pair in ((i, j), (j, i))
    )
    assert model.loss(images, captions, torch.tensor([7, 7, 3]))["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_gradients_are_finite_for_zero_regions_and_one_word() -> None:
    for way in ("t2i", "i2t", "ensemble", "sum_max_t2i"):
        model = scan(cross_attention=way)
        features = FEATURES.clone()
        features[0], features[1, 0] = 0, 0
        captions = model.encode_captions(TOKENS, torch.tensor([1, 1, 5]))
        model.loss(model.encode_images(features), captions)["loss"].backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_attention_options_are_those_of_the_direction() -> None:
    config = ScanConfig.preset("f30k_t2i_avg_i2t_lse_joint", **SIZES, clip_slope=0.0)
    t2i, i2t = config.attention_options("t2i"), config.attention_options("i2t")
    assert (t2i["lambda_softmax"], t2i["pooling"]) == (9.0, "avg")
    assert (i2t["lambda_softmax"], i2t["pooling"], i2t["lambda_lse"]) == (4.0, "lse", 5.0)
    assert t2i["clip_slope"] == i2t["clip_slope"] == 0.0
    single = ScanConfig(**SIZES, cross_attention="i2t", lambda_softmax=7.0)
    assert single.attention_options("i2t")["lambda_softmax"] == 7.0
    with pytest.raises(ValueError, match="direction 't2i': this model's cross_attention is 'i2t'"):
        single.attention_options("t2i")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"embed_dim": 0}, "embed_dim must be at least 1, not 0"),
        ({"vocabulary_size": 2**40}, "vocabulary_size must be at most"),
        ({"region_count": 0}, "region_count must be at least 1"),
        ({"lambda_softmax": 0.0}, "lambda_softmax must be greater than 0"),
        ({"i2t_lambda_lse": -1.0}, "i2t_lambda_lse must be greater than 0"),
        ({"clip_slope": -0.1}, "clip_slope must be at least 0"),
        ({"margin": -0.1}, "margin must be at least 0"),
        ({"pooling": "mean"}, "pooling must be one of lse, avg, sum, max, not 'mean'"),
        ({"cross_attention": "both"}, "cross_attention must be one of"),
    ],
)
def test_config_names_a_field_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScanConfig(**{**SIZES, **fields})


@pytest.mark.parametrize(
    ("tokens", "lengths", "error", "message"),
    [
        (TOKENS.float(), LENGTHS, TypeError, "tokens must be int64"),
        (TOKENS[0], LENGTHS, ValueError, r"tokens must have shape \(n, W\)"),
        (TOKENS.index_fill(1, torch.tensor(4), 11), LENGTHS, ValueError, r"tokens\[0, 4\] is 11, not in"),
        (TOKENS.index_fill(1, torch.tensor(2), -1), LENGTHS, ValueError, r"tokens\[0, 2\] is -1, not in"),
        (TOKENS, LENGTHS[:2], ValueError, r"lengths must have shape \(3,\)"),
        (TOKENS, LENGTHS - 2, ValueError, r"lengths\[1\] must be in 1\.\.5, got 0"),
        (TOKENS, LENGTHS + 1, ValueError, r"lengths\[0\] must be in 1\.\.5, got 6"),
    ],
)
def test_captions_that_do_not_fit_are_errors(
    tokens: Tensor, lengths: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        scan().encode_captions(tokens, lengths)


def test_images_that_do_not_fit_are_errors() -> None:
    with pytest.raises(ValueError, match=r"features must have shape \(n, R, 6\), got \(3, 4, 5\)"):
        scan().encode_images(FEATURES[:, :, :5])
    with pytest.raises(ValueError, match=r"lengths\[2\] must be in 1\.\.4, got 5"):
        scan().encode_images(FEATURES, torch.tensor([1, 4, 5]))


def test_the_registry_makes_it_from_its_config() -> None:
    config_class, model_class = MODELS[Scan.kind]
    config = replace(config_class(**SIZES), embed_dim=3)
    assert model_class(config).config.embed_dim == 3


_OF_I2T = {"i2t_lambda_softmax", "i2t_pooling", "i2t_lambda_lse"}


@pytest.mark.parametrize(
    ("fields", "unused"),
    [
        ({}, {"lambda_lse"} | _OF_I2T),
        ({"pooling": "lse", "raw_feature_norm": "softmax"}, {"clip_slope"} | _OF_I2T),
        ({"cross_attention": "ensemble", "i2t_pooling": "avg"}, {"lambda_lse", "i2t_lambda_lse"}),
        ({"cross_attention": "ensemble", "pooling": "lse", "i2t_pooling": "lse"}, set()),
        (
            {"cross_attention": "sum_max_i2t", "pooling": "lse"},
            {"raw_feature_norm", "clip_slope", "lambda_softmax", "pooling", "lambda_lse"} | _OF_I2T,
        ),
    ],
)
def test_unused_fields_are_known(fields: dict[str, Any], unused: set[str]) -> None:
    assert set(ScanConfig(**SIZES, **fields).unused()) == unused
