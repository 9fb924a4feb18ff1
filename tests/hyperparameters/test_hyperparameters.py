"""Hyper-parameters of models: presets build, hold the papers' key figures, and say what is wrong or unused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig
from crossret.hyperparameters.scan import PRESET_OF_CROSS_ATTENTION

SIZES = {"image_dim": 2048, "vocabulary_size": 100}
PRESETS = pytest.mark.parametrize(
    ("config", "preset"),
    [(config, name) for config in MODEL_CONFIGS.values() for name in config.presets],
    ids=lambda part: getattr(part, "kind", part),
)


@PRESETS
def test_a_preset_builds_and_goes_through_json(config: type[ModelConfig], preset: str) -> None:
    made, schedule = config.preset(preset, **SIZES, word_dim=7), config.schedule(preset, seed=5)
    assert made.word_dim == 7  # type: ignore[attr-defined]
    assert schedule.seed == 5
    assert config.from_json(made.to_json()) == made
    assert TrainingConfig.from_json(schedule.to_json()) == schedule
    assert not set(made.unused()) & set(config.presets[preset])  # it sets nothing that makes no difference
    with pytest.raises(ValueError, match="has no field 'depth'"):
        config.from_json(made.to_json().replace('"word_dim"', '"depth"'))


# What each paper's figures hang on: a preset, and of its model and its schedule a few.
@pytest.mark.parametrize(
    ("kind", "preset", "expected"),
    [
        ("scan", "coco_i2t_lse", {"lambda_lse": 20, "epochs": 20, "decay_epochs": (10,), "learning_rate": 5e-4}),
        ("scan", "f30k_t2i_avg", {"margin": 0.2, "embed_dim": 1024, "epochs": 30, "learning_rate": 2e-4}),
        ("sman", "f30k", {"alpha": 0.9, "levels": 3, "optimizer": "adadelta", "epochs": 60, "weight_decay": 5e-4}),
        ("sman", "coco_im", {"levels": 2, "location": False}),
        ("han", "coco", {"layers": 3, "p": 4, "clusters": 32, "batch_size": 64, "epochs": 20}),
        ("han", "f30k", {"layers": 1, "p": 8, "negatives": "softmax", "learning_rate": 1e-4}),
        ("mhsan", "coco", {"heads": 10, "text_from_epoch": 4, "image_from_epoch": 19, "decay_epochs": (4, 19)}),
        ("mhsan", "f30k", {"bidirectional": True, "batch_size": 160, "gradient_norm": None, "learning_rate": 5e-3}),
        ("oan", "f30k", {"lambda_tv": 9, "lambda_vt": 5, "gamma": 0.3, "max_words": 80, "select_by": "r1"}),
        ("oan", "coco_no_inter", {"inter_attention": False, "max_words": 60, "weight_decay": 1e-6, "epochs": 24}),
        ("vse", "f30k_vse0", {"image_norm": False, "negatives": "sum", "embed_dim": 1024}),
        ("vse", "coco_order", {"measure": "order", "epochs": 30, "decay_epochs": (15,)}),
    ],
)
def test_a_preset_has_the_papers_figures(kind: str, preset: str, expected: dict[str, Any]) -> None:
    config = MODEL_CONFIGS[kind]
    made = {**vars(config.schedule(preset)), **vars(config.preset(preset, **SIZES))}
    assert {name: made[name] for name in expected} == expected


@pytest.mark.parametrize("config", MODEL_CONFIGS.values(), ids=MODEL_CONFIGS)
def test_an_unknown_preset_is_an_error_and_every_option_says_what_it_is(config: type[ModelConfig]) -> None:
    for make in (config.preset, config.schedule):
        with pytest.raises(ValueError, match=rf"preset must be one of {next(iter(config.presets))}, .*, not 'vg'"):
            make("vg")
    for field in fields(config):
        assert field.name in (*SIZES, "text_dim", "spatial_order") or field.metadata["help"].endswith(".")


def test_every_direction_of_scan_has_a_preset() -> None:
    scan: Any = MODEL_CONFIGS["scan"]
    for cross_attention, preset in PRESET_OF_CROSS_ATTENTION.items():
        assert scan.preset(preset, **SIZES).cross_attention == cross_attention


def test_no_torch_is_imported() -> None:
    code = "import sys, crossret.hyperparameters; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("kind", "changed", "unused"),
    [
        ("scan", {"cross_attention": "ensemble", "i2t_pooling": "avg"}, {"lambda_lse", "i2t_lambda_lse"}),
        ("scan", {"cross_attention": "ensemble", "pooling": "lse", "i2t_pooling": "softmax"}, set()),
        (
            "scan",
            {"raw_feature_norm": "minmax", "pooling": "lse"},
            {"clip_slope", "lambda_softmax", "i2t_lambda_softmax", "i2t_pooling", "i2t_lambda_lse"},
        ),
        ("sman", {"levels": 2, "intra_pair_weight": 0}, {"alpha", "intra_pair_margin"}),
        ("han", {"text_encoder": "transformer"}, set()),
        ("han", {"layers": 0}, {"transformer_layers", "transformer_heads", "heads", "lambda_attention"}),
        ("han", {"negatives": "sum"}, {"transformer_layers", "transformer_heads", "p"}),
        ("mhsan", {"diversity_weight": 0}, {"diversity_squared"}),
        ("oan", {}, set()),
        ("oan", {"inter_attention": False}, {"lambda_tv", "lambda_vt", "gamma"}),
        ("oan", {"intra_negatives": "none"}, {"intra_margin", "intra_weight"}),
    ],
)
def test_what_makes_no_difference_is_known(kind: str, changed: dict[str, Any], unused: set[str]) -> None:
    of_other_losses = {"label_smoothing", "loss_scale", "loss_bias"}
    assert set(MODEL_CONFIGS[kind](**SIZES, **changed).unused()) - of_other_losses == unused


EVERY: list[tuple[dict[str, Any], str]] = [
    ({"image_dim": 0}, "image_dim must be at least 1, not 0"),
    ({"embed_dim": 2**24 + 1}, "embed_dim must be at most 16777216, not"),
    ({"max_words": 0}, "max_words must be at least 1, not 0"),
    ({"margin": -0.1}, "margin must be at least 0, not -0.1"),
    ({"negatives": "all"}, "negatives must be one of hardest, sum, (softmax, )?not 'all'"),
]


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        *((kind, *wrong) for kind in MODEL_CONFIGS for wrong in EVERY),
        ("scan", {"lambda_softmax": 0.0}, "lambda_softmax must be greater than 0, not 0.0"),
        ("scan", {"clip_slope": -0.1}, "clip_slope must be at least 0, not -0.1"),
        ("scan", {"region_count": 0}, "region_count must be at least 1, not 0"),
        ("sman", {"dropout": 1.0}, "dropout must be less than 1, not 1.0"),
        ("sman", {"alpha": 1.1}, "alpha must be at most 1, not 1.1"),
        ("sman", {"levels": 1}, "levels must be 2 or 3, not 1"),
        ("han", {"heads": 3}, "heads must divide embed_dim: 3 does not divide 512"),
        ("han", {"text_encoder": "transformer", "transformer_heads": 3}, "transformer_heads must divide embed_dim"),
        ("han", {"p": 0.9}, "p must be at least 1, not 0.9"),
        ("han", {"lambda_attention": 0.0}, "lambda_attention must be greater than 0, not 0.0"),
        ("mhsan", {"feature_dim": 5, "bidirectional": True}, "feature_dim must be even for both ways of reading"),
        ("mhsan", {"text_from_epoch": -1}, "text_from_epoch must be at least 0, not -1"),
        ("oan", {"gamma": 1.1}, "gamma must be at most 1, not 1.1"),
        ("oan", {"heads": 1025}, "heads must be at most 1024, not 1025"),
        ("vse", {"text_layers": 257}, "text_layers must be at most 256, not 257"),
    ],
)
def test_a_field_out_of_range_is_named(kind: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MODEL_CONFIGS[kind](**{**SIZES, **changed})


@pytest.mark.parametrize("kind", MODEL_CONFIGS)
def test_a_model_reads_words_or_tokens(kind: str) -> None:
    config = MODEL_CONFIGS[kind]
    tokens = config(image_dim=8, vocabulary_size=0, text_dim=16)
    assert {"word_dim", "freeze_words"} <= set(tokens.unused())
    assert "word_dim" not in config(**SIZES).unused()
    assert config.from_json(tokens.to_json()) == tokens
    with pytest.raises(ValueError, match="vocabulary_size must be at least 1, not 0"):
        config(image_dim=8, vocabulary_size=0)
    with pytest.raises(ValueError, match="vocabulary_size must be 0 where text_dim says tokens, not 3"):
        config(image_dim=8, vocabulary_size=3, text_dim=16)
    with pytest.raises(ValueError, match="text_dim must be at least 1, not 0"):
        config(image_dim=8, vocabulary_size=3, text_dim=0)
