"""Settings of a training: their ranges, the learning rate of every step, and groups of parameters as text."""

from __future__ import annotations

import math
from typing import Any

import pytest

from crossret.hyperparameters.config import LARGEST_COUNT, parse_value
from crossret.training import ParameterGroup, TrainingConfig

GROUPS = (ParameterGroup("image.fc", 0.1), ParameterGroup("text", 2.0, 0.0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"optimizer": "sgd"}, "optimizer must be one of adam, adamw, adadelta, not 'sgd'"),
        ({"decay": "linear"}, "decay must be one of step, cosine, not 'linear'"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"weight_decay": -1e-6}, "weight_decay must be at least 0"),
        ({"decay_epochs": (4, 4)}, r"decay_epochs must ascend from 1 on, not \[4, 4\]"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"select_by": "r5"}, "select_by must be one of rsum, r1, not 'r5'"),
        ({"parameter_groups": ({"prefix": "a", "factor": 0},)}, "factor must be greater than 0, not 0"),
        ({"parameter_groups": ({"prefix": "a", "weight_decay": -1},)}, "weight_decay must be at least 0, not -1"),
        ({"parameter_groups": ({"prefix": "a", "rate": 1},)}, "ParameterGroup has no field 'rate'"),
        ({"parameter_groups": ("a:1",)}, "parameter_groups must be of ParameterGroup, not"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        TrainingConfig(**fields)


def test_groups_are_there_and_back_in_json_and_as_text() -> None:
    config = TrainingConfig(parameter_groups=GROUPS)
    assert TrainingConfig.from_json(config.to_json()) == config
    hint = tuple[ParameterGroup, ...]
    text = ",".join(map(str, GROUPS))
    assert text == "image.fc:0.1,text:2.0:0.0"
    exact = ParameterGroup("text", 1 / 3)
    assert ParameterGroup.parse(str(exact)) == exact
    assert parse_value(hint, text) == GROUPS
    assert parse_value(hint, "") == ()
    assert parse_value(hint, "text:2:none") == (ParameterGroup("text", 2.0),)
    for wrong in ("text", "text:a", "text:1:2:3", "text:1,", "text:0"):
        with pytest.raises(ValueError, match=r"^prefix:factor or prefix:factor:weight_decay between commas$"):
            parse_value(hint, wrong)


def test_a_group_has_whole_parts_of_names() -> None:
    names = ["image.fc.bias", "image.fcs.bias", "image", "text.image.fc"]
    assert [name for name in names if ParameterGroup("image.fc").has(name)] == ["image.fc.bias"]
    assert [name for name in names if ParameterGroup("image").has(name)] == names[:3]
    assert all(ParameterGroup("").has(name) for name in names)


def test_the_rate_is_divided_by_10_after_each_decay() -> None:
    config = TrainingConfig(learning_rate=0.5, decay_epochs=(2, 3))
    assert [config.learning_rate_of(2 * epoch + 1, 2) for epoch in range(5)] == [0.5, 0.5, 0.05, 0.005, 0.005]
    assert TrainingConfig(learning_rate=0.5, decay_epochs=()).learning_rate_of(99, 1) == 0.5


def test_the_rate_rises_in_equal_parts() -> None:
    config = TrainingConfig(learning_rate=0.5, warmup_steps=4, decay_epochs=(1,))
    assert [config.learning_rate_of(step, 6) for step in range(6)] == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert config.learning_rate_of(1, 1) == pytest.approx(0.025)


@pytest.mark.parametrize("warmup", [0, 4])
def test_a_cosine_ends_the_warm_up_and_falls_to_nothing(warmup: int) -> None:
    config = TrainingConfig(epochs=3, learning_rate=0.5, warmup_steps=warmup, decay="cosine", decay_epochs=(1,))
    steps = 3 * 8
    rates = [config.learning_rate_of(step, 8) for step in range(steps)]
    assert rates[:warmup] == [0.125, 0.25, 0.375, 0.5][:warmup]
    falling = [0.25 * (1 + math.cos(math.pi * done / (steps - warmup))) for done in range(steps - warmup)]
    assert rates[warmup:] == pytest.approx(falling)
    assert config.learning_rate_of(steps, 8) == 0
    # A warm-up that outlasts the training rises to its end.
    assert TrainingConfig(epochs=1, decay="cosine", warmup_steps=9).learning_rate_of(5, 6) == pytest.approx(
        2e-4 * 6 / 9
    )


@pytest.mark.parametrize(("captions", "steps"), [(1, 1), (32, 1), (33, 2), (44, 2), (10**9, 31250000)])
def test_steps_of_an_epoch(captions: int, steps: int) -> None:
    assert TrainingConfig(batch_size=8, accumulate=4).steps_of(captions) == steps
    assert TrainingConfig(batch_size=LARGEST_COUNT).steps_of(captions) == 1
