"""Hyper-parameters: the papers' figures by name, ranges, what makes no difference, JSON there and back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from crossret.hyperparameters import (
    MODEL_CONFIGS,
    HanConfig,
    MhsanConfig,
    ModelConfig,
    OanConfig,
    ScanConfig,
    SmanConfig,
    TrainingConfig,
    VseConfig,
)
from crossret.hyperparameters.scan import PRESET_OF_CROSS_ATTENTION

SIZES = {"image_dim": 2048, "vocabulary_size": 100}
TRANSFORMER, INTRA_LOSS = (
    {"transformer_layers", "transformer_heads"},
    {"intra_negatives", "intra_margin", "intra_weight"},
)
PRESETS = [(config, name) for config in MODEL_CONFIGS.values() for name in config.presets]
OF_THE_PAPERS = [(config, name) for config, name in PRESETS if name != "scenes"]

# Of each paper, the section or table that settles the defaults.
SCAN = {"embed_dim": 1024, "word_dim": 300, "bidirectional": True, "margin": 0.2, "negatives": "hardest"}  # Appendix A
SMAN = {  # Section IV-A.3
    "embed_dim": 512,
    "word_dim": 512,
    "dropout": 0.3,
    "location": True,
    "levels": 3,
    "alpha": 0.9,
    "margin": 0.2,
    "negatives": "hardest",
    "intra_pair_margin": 0.25,
    "intra_pair_weight": 1.0,
}
HAN = {  # Section 4.1
    "embed_dim": 512,
    "word_dim": 300,
    "text_encoder": "gru",
    "clusters": 32,
    "layers": 1,
    "heads": 4,
    "matching": "local",
    "direction": "t2i",
    "negatives": "softmax",
    "p": 8.0,
}
MHSAN = {  # Section 3.5
    "feature_dim": 2400,
    "embed_dim": 2400,
    "attention_dim": 350,
    "heads": 10,
    "dropout": 0.5,
    "text_layers": 4,
    "bidirectional": False,
    "text_dropout": 0.25,
    "margin": 0.2,
    "negatives": "hardest",
    "diversity_weight": 0.1,
    "text_from_epoch": 4,
    "image_from_epoch": 4 + 15,
}
OAN = {  # Section 5.2, but for lambda_tv and lambda_vt
    "embed_dim": 512,
    "word_dim": 300,
    "text_encoder": "ngram",
    "inter_attention": True,
    "intra_attention": True,
    "heads": 6,
    "lambda_tv": 9.0,
    "lambda_vt": 5.0,
    "lambda_intra": 1.0,
    "gamma": 0.3,
    "margin": 0.2,
    "negatives": "hardest",
    "intra_negatives": "partner",
    "intra_margin": 0.1,
    "intra_weight": 0.5,
}
VSE = {  # the paper's, and its train.py's
    "embed_dim": 1024,
    "word_dim": 300,
    "text_layers": 1,
    "image_norm": True,
    "use_abs": False,
    "measure": "cosine",
    "margin": 0.2,
    "negatives": "hardest",
}
DEFAULTS = {"scan": SCAN, "sman": SMAN, "han": HAN, "mhsan": MHSAN, "oan": OAN, "vse": VSE}

# What each table's row changes of them, by the preset's name without the data set.
SMAN_VARIANTS = {  # Section IV-A.4
    "": {},
    "im": {"location": False, "levels": 2},
    "im_loc": {"levels": 2},
    "sim": {"alpha": 1.0},
    "inter": {"intra_pair_weight": 0.0},
}
OAN_VARIANTS = {  # Table 2
    "": {},
    "own": {"intra_negatives": "own"},
    "no_intra_negatives": {"intra_negatives": "none"},
    "no_inter": {"inter_attention": False},
    "no_intra": {"intra_attention": False},
    "no_attention": {"inter_attention": False, "intra_attention": False},
    "lstm": {"text_encoder": "lstm"},
    "printed": {"lambda_tv": 0.9, "lambda_vt": 0.5},  # Section 5.2
}
T2I_AVG = {"cross_attention": "t2i", "lambda_softmax": 9.0, "pooling": "avg"}
T2I_LSE = {"cross_attention": "t2i", "lambda_softmax": 9.0, "pooling": "lse", "lambda_lse": 6.0}
I2T_AVG = {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "avg"}
I2T_LSE = {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "lse"}
ENSEMBLE = {"cross_attention": "ensemble", "i2t_lambda_softmax": 4.0}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "scan": {  # Tables 1 to 3
        "f30k_t2i_lse": T2I_LSE,
        "f30k_t2i_avg": T2I_AVG,
        "f30k_i2t_lse": {**I2T_LSE, "lambda_lse": 5.0},
        "f30k_i2t_avg": I2T_AVG,
        "f30k_t2i_avg_i2t_lse_joint": {**T2I_AVG, **ENSEMBLE, "i2t_pooling": "lse", "i2t_lambda_lse": 5.0},
        "coco_t2i_lse": T2I_LSE,
        "coco_t2i_avg": T2I_AVG,
        "coco_i2t_lse": {**I2T_LSE, "lambda_lse": 20.0},
        "coco_i2t_avg": I2T_AVG,
        "coco_t2i_lse_i2t_avg_joint": {**T2I_LSE, **ENSEMBLE, "i2t_pooling": "avg"},
        "coco_t2i_avg_i2t_lse_joint": {**T2I_AVG, **ENSEMBLE, "i2t_pooling": "lse", "i2t_lambda_lse": 20.0},
        "f30k_sum_max_t2i": {"cross_attention": "sum_max_t2i"},
        "f30k_sum_max_i2t": {"cross_attention": "sum_max_i2t"},
    },
    "sman": {
        f"{data}_{name}".rstrip("_"): changed for data in ("f30k", "coco") for name, changed in SMAN_VARIANTS.items()
    },
    "han": {
        "f30k": {},
        "coco": {"layers": 3, "p": 4.0},
        "f30k_global": {"matching": "global"},
        "coco_global": {"matching": "global"},
    },
    "mhsan": {  # Tables 1, 2 and 4; Table 2's footnote
        "f30k": {"bidirectional": True},
        "f30k_5_heads": {"heads": 5},
        "f30k_1_head": {"heads": 1},
        "coco": {},
        "coco_5_heads": {"heads": 5},
        "coco_1_head": {"heads": 1},
    },
    "oan": {
        f"{data}_{name}".rstrip("_"): {**changed, "max_words": words}
        for data, words in (("f30k", 80), ("coco", 60))  # Section 5.2
        for name, changed in OAN_VARIANTS.items()
    },
    "vse": {  # the published code's README
        "f30k": {},
        "f30k_vse0": {"image_norm": False, "negatives": "sum"},
        "coco": {},
        "coco_vse0": {"image_norm": False, "negatives": "sum"},
        "coco_order": {"measure": "order"},
    },
}

COMMON: dict[str, Any] = {"batch_size": 128, "select_by": "rsum", "same_image_negatives": False}
ADAM: dict[str, Any] = {**COMMON, "optimizer": "adam", "weight_decay": 0.0, "gradient_norm": 2.0}
ADADELTA: dict[str, Any] = {**COMMON, "optimizer": "adadelta", "weight_decay": 5e-4, "gradient_norm": 0.1}
# By model and, where the paper tells them apart, by data set.
SCHEDULES: dict[str, dict[str, Any]] = {
    "scan f30k": {**ADAM, "epochs": 15 + 15, "decay_epochs": (15,), "learning_rate": 2e-4},
    "scan coco": {**ADAM, "epochs": 10 + 10, "decay_epochs": (10,), "learning_rate": 5e-4},
    "sman": {**ADADELTA, "epochs": 60, "decay_epochs": (50,), "learning_rate": 0.05},
    "han": {**ADAM, "epochs": 20, "decay_epochs": (10,), "batch_size": 64, "learning_rate": 1e-4},
    "mhsan": {
        **ADAM,
        "epochs": 4 + 15 + 40,
        "decay_epochs": (4, 4 + 15),
        "batch_size": 160,  # as in the published code, like the missing norm
        "learning_rate": 5e-3,
        "gradient_norm": None,
    },
    "oan": {
        **ADAM,
        "epochs": 24,
        "decay_epochs": (15,),
        "learning_rate": 5e-4,
        "weight_decay": 1e-6,
        "select_by": "r1",
    },
    "vse": {**ADAM, "epochs": 15 + 15, "decay_epochs": (15,), "learning_rate": 2e-4},
}


def config_of(kind: str, **changed: Any) -> ModelConfig:
    return MODEL_CONFIGS[kind](**SIZES, **changed)


@pytest.mark.parametrize(("config", "preset"), OF_THE_PAPERS, ids=lambda part: getattr(part, "kind", part))
def test_presets_are_the_papers_models(config: type[ModelConfig], preset: str) -> None:
    made = asdict(config.preset(preset, **SIZES))
    expected = {**DEFAULTS[config.kind], **VARIANTS[config.kind][preset]}
    assert {name: made[name] for name in expected} == expected


def test_every_preset_is_of_a_paper_or_of_the_scenes() -> None:
    for kind, config in MODEL_CONFIGS.items():
        assert set(config.presets) == {*VARIANTS[kind], "scenes"}


@pytest.mark.parametrize(("config", "preset"), OF_THE_PAPERS, ids=lambda part: getattr(part, "kind", part))
def test_schedules_are_the_papers(config: type[ModelConfig], preset: str) -> None:
    made = asdict(config.schedule(preset))
    expected = SCHEDULES.get(f"{config.kind} {preset.split('_')[0]}") or SCHEDULES[config.kind]
    assert {name: made[name] for name in expected} == expected


def test_mhsan_s_rate_falls_where_its_stages_begin() -> None:
    config, schedule = MhsanConfig.preset("coco", **SIZES), MhsanConfig.schedule("coco")
    assert schedule.decay_epochs == (config.text_from_epoch, config.image_from_epoch)
    rates = [schedule.learning_rate_of(10 * epoch, 10) for epoch in (0, 3, 4, 18, 19, 58)]
    assert rates == pytest.approx([5e-3, 5e-3, 5e-4, 5e-4, 5e-5, 5e-5], rel=1e-12)


@pytest.mark.parametrize(("config", "preset"), PRESETS, ids=lambda part: getattr(part, "kind", part))
def test_json_there_and_back(config: type[ModelConfig], preset: str) -> None:
    made = config.preset(preset, **SIZES, word_dim=7)
    assert config.from_json(made.to_json()) == made
    schedule = config.schedule(preset, seed=5)
    assert TrainingConfig.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(("config", "preset"), PRESETS, ids=lambda part: getattr(part, "kind", part))
def test_a_preset_sets_nothing_that_makes_no_difference(config: type[ModelConfig], preset: str) -> None:
    unused = config.preset(preset, **SIZES).unused()
    assert not set(unused) & set(config.presets[preset])
    assert set(unused) <= {field.name for field in fields(config)}


@pytest.mark.parametrize("config", MODEL_CONFIGS.values(), ids=MODEL_CONFIGS)
def test_presets_and_schedules_can_be_changed(config: type[ModelConfig]) -> None:
    first = next(iter(config.presets))
    assert config.preset(first, **SIZES, margin=0.7) == replace(config.preset(first, **SIZES), margin=0.7)
    assert config.schedule(first, seed=9) == replace(config.schedule(first), seed=9)
    for make in (config.preset, config.schedule):
        with pytest.raises(ValueError, match=rf"preset must be one of {first}, .*, not 'vg'"):
            make("vg")


@pytest.mark.parametrize("config", MODEL_CONFIGS.values(), ids=MODEL_CONFIGS)
def test_every_option_says_what_it_is(config: type[ModelConfig]) -> None:
    for field in fields(config):
        assert field.name in (*SIZES, "spatial_order") or field.metadata["help"].endswith(".")


def test_no_torch_is_imported() -> None:
    code = "import sys, crossret.hyperparameters; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("kind", "changed", "unused"),
    [
        ("sman", {}, set()),
        ("sman", {"levels": 2}, {"alpha"}),
        ("sman", {"intra_pair_weight": 0}, {"intra_pair_margin"}),
        ("sman", {"levels": 2, "intra_pair_weight": 0}, {"alpha", "intra_pair_margin"}),
        ("han", {}, TRANSFORMER),
        ("han", {"text_encoder": "transformer"}, set()),
        ("han", {"layers": 0}, {*TRANSFORMER, "heads", "lambda_attention"}),
        ("han", {"matching": "global"}, {*TRANSFORMER, "direction", "lambda_softmax"}),
        ("han", {"negatives": "sum"}, {*TRANSFORMER, "p"}),
        ("mhsan", {}, set()),
        ("mhsan", {"diversity_weight": 0}, {"diversity_squared"}),
        ("oan", {}, set()),
        ("oan", {"inter_attention": False}, {"lambda_tv", "lambda_vt", "gamma"}),
        ("oan", {"intra_attention": False}, {"heads", "lambda_intra", "gamma", *INTRA_LOSS}),
        (
            "oan",
            {"inter_attention": False, "intra_attention": False},
            {"heads", "lambda_intra", "gamma", "lambda_tv", "lambda_vt"},
        ),
        ("oan", {"intra_negatives": "none"}, INTRA_LOSS - {"intra_negatives"}),
    ],
)
def test_what_makes_no_difference_is_known(kind: str, changed: dict[str, Any], unused: set[str]) -> None:
    assert set(config_of(kind, **changed).unused()) == unused


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        *((kind, {"image_dim": 0}, "image_dim must be at least 1, not 0") for kind in MODEL_CONFIGS),
        *((kind, {"embed_dim": 2**24 + 1}, "embed_dim must be at most 16777216, not") for kind in MODEL_CONFIGS),
        *((kind, {"word_dim": 0}, "word_dim must be at least 1, not 0") for kind in MODEL_CONFIGS),
        *((kind, {"max_words": 0}, "max_words must be at least 1, not 0") for kind in MODEL_CONFIGS),
        *((kind, {"margin": -0.1}, "margin must be at least 0, not -0.1") for kind in MODEL_CONFIGS),
        *(
            (kind, {"negatives": "all"}, "negatives must be one of hardest, sum, (softmax, )?not 'all'")
            for kind in MODEL_CONFIGS
        ),
        ("scan", {"lambda_softmax": 0.0}, "lambda_softmax must be greater than 0, not 0.0"),
        ("scan", {"clip_slope": -0.1}, "clip_slope must be at least 0, not -0.1"),
        ("scan", {"region_count": 0}, "region_count must be at least 1, not 0"),
        ("sman", {"dropout": 1.0}, "dropout must be less than 1, not 1.0"),
        ("sman", {"alpha": 1.1}, "alpha must be at most 1, not 1.1"),
        ("sman", {"alpha": -0.1}, "alpha must be at least 0, not -0.1"),
        ("sman", {"levels": 1}, "levels must be 2 or 3, not 1"),
        ("sman", {"intra_pair_margin": -1.0}, "intra_pair_margin must be at least 0, not -1.0"),
        ("han", {"clusters": 0}, "clusters must be at least 1, not 0"),
        ("han", {"layers": -1}, "layers must be at least 0, not -1"),
        ("han", {"heads": 3}, "heads must divide embed_dim: 3 does not divide 512"),
        (
            "han",
            {"text_encoder": "transformer", "transformer_heads": 3},
            "transformer_heads must divide embed_dim: 3 does not divide 512",
        ),
        ("han", {"p": 0.9}, "p must be at least 1, not 0.9"),
        ("han", {"lambda_attention": 0.0}, "lambda_attention must be greater than 0, not 0.0"),
        ("han", {"matching": "none"}, "matching must be one of local, global, not 'none'"),
        ("mhsan", {"text_dropout": 1.0}, "text_dropout must be less than 1, not 1.0"),
        (
            "mhsan",
            {"feature_dim": 5, "bidirectional": True},
            "feature_dim must be even for both ways of reading, not 5",
        ),
        ("mhsan", {"text_from_epoch": -1}, "text_from_epoch must be at least 0, not -1"),
        ("oan", {"gamma": 1.1}, "gamma must be at most 1, not 1.1"),
        ("oan", {"lambda_vt": 0.0}, "lambda_vt must be greater than 0, not 0.0"),
        ("oan", {"intra_weight": -0.5}, "intra_weight must be at least 0, not -0.5"),
        ("vse", {"measure": "l2"}, "measure must be one of cosine, order, not 'l2'"),
        ("vse", {"text_layers": 257}, "text_layers must be at most 256, not 257"),
    ],
)
def test_a_field_out_of_range_is_named(kind: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MODEL_CONFIGS[kind](**{**SIZES, **changed})


def test_heads_of_no_layer_divide_nothing() -> None:
    assert HanConfig(**SIZES, layers=0, heads=3).layers == 0


def test_every_direction_of_scan_has_a_preset() -> None:
    for cross_attention, preset in PRESET_OF_CROSS_ATTENTION.items():
        assert ScanConfig.preset(preset, **SIZES).cross_attention == cross_attention
    assert next(iter(ScanConfig.presets)) == PRESET_OF_CROSS_ATTENTION["t2i"]


def test_the_models_are_named_as_their_configs() -> None:
    assert MODEL_CONFIGS == {
        "scan": ScanConfig,
        "sman": SmanConfig,
        "han": HanConfig,
        "mhsan": MhsanConfig,
        "oan": OanConfig,
        "vse": VseConfig,
    }
