"""Settings of a training: their ranges, and the learning rate of every epoch."""

from __future__ import annotations

from typing import Any

import pytest

from crossret.training import TrainingConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"optimizer": "sgd"}, "optimizer must be one of adam, adadelta, not 'sgd'"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"weight_decay": -1e-6}, "weight_decay must be at least 0"),
        ({"gradient_norm": -1.0}, "gradient_norm must be greater than 0"),
        ({"decay_epochs": (0,)}, r"decay_epochs must ascend from 1 on, not \[0\]"),
        ({"decay_epochs": (4, 4)}, r"decay_epochs must ascend from 1 on, not \[4, 4\]"),
        ({"decay_epochs": (4, 3)}, r"decay_epochs must ascend from 1 on, not \[4, 3\]"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"select_by": "r5"}, "select_by must be one of rsum, r1, not 'r5'"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
    ],
)
def test_config_names_a_field_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**fields)


def test_a_norm_of_none_is_no_mistake() -> None:
    assert TrainingConfig(gradient_norm=None).gradient_norm is None


def test_the_rate_is_divided_by_10_after_each_decay() -> None:
    config = TrainingConfig(learning_rate=0.5, decay_epochs=(2, 3))
    assert [config.learning_rate_of(epoch, 0) for epoch in range(5)] == [0.5, 0.5, 0.05, 0.005, 0.005]
    assert TrainingConfig(learning_rate=0.5, decay_epochs=()).learning_rate_of(99, 0) == 0.5
