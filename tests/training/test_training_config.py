"""Settings of a training: their ranges, and the paper's."""

from __future__ import annotations

from typing import Any

import pytest

from crossret.training import TrainingConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"gradient_norm": -1.0}, "gradient_norm must be greater than 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
    ],
)
def test_config_names_a_field_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**fields)


def test_presets_are_the_paper_s_schedules() -> None:
    assert TrainingConfig.preset("f30k") == TrainingConfig(epochs=30, decay_epoch=15, learning_rate=2e-4)
    coco = TrainingConfig.preset("coco", seed=1)
    assert (coco.epochs, coco.decay_epoch, coco.learning_rate, coco.seed) == (20, 10, 5e-4, 1)
    with pytest.raises(ValueError, match="preset must be one of f30k, coco, not 'vg'"):
        TrainingConfig.preset("vg")
