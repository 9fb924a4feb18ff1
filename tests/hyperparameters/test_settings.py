"""The one language of settings: what is typed has the fields' types, is told from what is not, and can be written."""

from __future__ import annotations

import pytest

from crossret.hyperparameters import MODEL_CONFIGS, TrainingConfig
from crossret.hyperparameters.settings import overlaid, parse_settings, parse_variant, settable, spelt, texts_of
from tests.hyperparameters.others import with_another, without_defaults

SIZES = {"image_dim": 6, "vocabulary_size": 9}


def test_fields_have_the_types_of_the_configs() -> None:
    settings = parse_settings("han", None, ["p=4 clusters=none", "layers=3 decay_epochs=2,3 learning_rate=5e-4"])
    assert settings.fields == {"clusters": None, "layers": 3, "p": 4.0}
    assert settings.schedule == {"decay_epochs": (2, 3), "learning_rate": 5e-4}
    assert settings.typed == ("clusters=none", "layers=3", "p=4", "decay_epochs=2,3", "learning_rate=5e-4")
    assert parse_settings("scan", None, ["bidirectional=false"]).fields == {"bidirectional": False}
    assert parse_settings("scan", None, ["decay_epochs="]).schedule == {"decay_epochs": ()}
    assert parse_settings("oan", None, ["intra_negatives=none"]).fields == {"intra_negatives": "none"}  # a choice
    assert parse_settings("mhsan", None, ["gradient_norm=none"]).training().gradient_norm is None


def test_a_variant_starts_from_its_preset() -> None:
    name, settings = parse_variant("oan gamma=0.5 preset=f30k_no_intra_negatives", "scenes")
    assert (name, settings.preset) == ("oan preset=f30k_no_intra_negatives gamma=0.5", "f30k_no_intra_negatives")
    assert settings.config(**SIZES) == MODEL_CONFIGS["oan"].preset(settings.preset, gamma=0.5, **SIZES)
    assert settings.training(seed=3) == MODEL_CONFIGS["oan"].schedule(settings.preset, seed=3)
    assert settings.with_defaults(["epochs=7", "gamma=0.1"]).typed == ("gamma=0.5", "epochs=7")


@pytest.mark.parametrize("model", MODEL_CONFIGS)
def test_what_is_written_of_a_config_is_read_as_the_same(model: str) -> None:
    defaults, how = MODEL_CONFIGS[model](**SIZES), without_defaults(TrainingConfig(seed=3))
    for name in settable(type(defaults)):
        config = with_another(defaults, name)
        settings = parse_settings(model, None, [*texts_of(config), *texts_of(how)])
        assert settings.training(seed=3) == how
        assert name in config.unused() or getattr(settings.config(**SIZES), name) == getattr(config, name)


def test_later_settings_stand_in_the_place_of_earlier_ones() -> None:
    assert overlaid(["a=1 b=2", "c=3"], ["b=4"]) == ["a=1", "c=3", "b=4"]
    assert [spelt(value) for value in (True, None, (1, 2), 4.0, 1 / 3, "lse")] == [
        "true", "none", "1,2", "4", repr(1 / 3), "lse"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the model must be one of scan, sman, han, mhsan, oan, vse, laps, not ''"),
        ("scan layers=1", "layers: scan has no such setting; han has"),
        ("scan dropout=1", "dropout: scan has no such setting; sman and mhsan have"),
        ("scan polling=lse", "polling: scan has no such setting; did you mean pooling?"),
        ("scan image_dim=1", "image_dim: scan has no such setting"),
        ("scan margin", "'margin' is not of the form field=value"),
        ("scan margin=1 margin=2", "margin is set twice"),
        ("han layers=1.5", "layers must be a whole number, not '1.5'"),
        ("scan gradient_norm=off", "gradient_norm must be a number or none, not 'off'"),
        ("scan decay_epochs=1;2", "decay_epochs must be whole numbers between commas, not '1;2'"),
        ("scan negatives=easy", "negatives must be one of hardest, sum, not 'easy'"),
        ("scan bidirectional=1", "bidirectional must be true or false, not '1'"),
        ("scan lambda_lse=3", "lambda_lse=3 makes no difference to this scan: leave it out, or choose pooling=lse"),
        (
            "oan gamma=0.1 intra_attention=false",
            "gamma=0.1 makes no difference to this oan: leave it out, or choose intra_attention=true",
        ),
        ("han heads=2 layers=0", "heads=2 makes no difference to this han: leave it out"),
    ],
)
def test_mistakes_name_the_variant_and_the_setting(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_variant(text, "scenes")
    assert str(error.value).startswith(f"variant {text!r}: {message}")
