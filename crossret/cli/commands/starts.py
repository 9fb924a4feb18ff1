"""Models and settings that `train` starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from crossret import system
from crossret.cli.errors import refuse
from crossret.cli.options import kind_of, spelling
from crossret.data import Vocabulary
from crossret.extraction import load_picture_encoder, load_text_encoder
from crossret.files.numbers import decimal_number
from crossret.hyperparameters import ModelConfig, TrainingConfig
from crossret.hyperparameters.config import LARGEST_NUMBER
from crossret.hyperparameters.settings import Settings, default_preset, parse_settings
from crossret.hyperparameters.training import ENCODER_RATE, ParameterGroup
from crossret.models import MODELS
from crossret.models.base import ENCODER, TEXT_ENCODER
from crossret.models.checkpoints import load_model, model_directory, with_config
from crossret.models.shapes import shapes_alone


def readers_of(given: Mapping[str, str | None], own: Mapping[str, Any]) -> dict[str, Any]:
    """Pretrained encoders by the part of a model that they become: its own, and those that are given by name."""
    readers = {}
    for part, load in ((ENCODER, load_picture_encoder), (TEXT_ENCODER, load_text_encoder)):
        name = given[part]
        if part in own:
            readers[part] = own[part].reader
        elif name is not None:
            readers[part] = load(name)
    return readers


def trained_parts(
    readers: Mapping[str, Any], frozen: Mapping[str, bool], rate: str | None, checkpoint: bool
) -> list[str]:
    """Parts whose encoders are trained; a ValueError where an option of encoders makes no difference."""
    for part in frozen.keys() - readers.keys():
        refuse({f"freeze_{part}": frozen[part]}, f"needs {spelling(part)}")
    trained = [part for part in readers if not frozen[part]]
    if not trained:
        flags = " and ".join(spelling(f"freeze_{part}") for part in readers)
        refuse(
            {"encoder_learning_rate": rate, "checkpoint_encoder": checkpoint},
            f"makes no difference with {flags}" if readers else "needs --encoder or --text-encoder",
        )
    for part in trained if checkpoint else ():
        readers[part].checkpoint_gradients()
    return trained


def with_encoder_rate(how: TrainingConfig, part: str, rate: str | None) -> TrainingConfig:
    """Settings of the training with a group of an encoder's parameters; one that is there already stays as it is."""
    groups = [group for group in how.parameter_groups if group.has(f"{part}.module")]
    if groups:
        if rate is not None:
            raise ValueError(
                f"--encoder-learning-rate {rate}: the encoder is in the parameter group {groups[0]} already"
            )
        return how
    try:
        number = decimal_number(ENCODER_RATE if rate is None else rate)
    except ValueError:
        number = 0.0
    if not 0 < number <= LARGEST_NUMBER:
        raise ValueError(f"--encoder-learning-rate must be a number greater than 0, not {rate!r}")
    own = ParameterGroup(part, number / how.learning_rate)
    return dataclasses.replace(how, parameter_groups=(*how.parameter_groups, own))


def new_model(config: ModelConfig, seed: int) -> Any:
    """A model with weights of its own."""
    _check_memory(config)
    torch.manual_seed(seed)
    return MODELS[config.kind][1](config)


def fine_tuned(
    run: Path, model: str | None, preset: str | None, texts: list[str]
) -> tuple[Any, Vocabulary | None, Settings]:
    """A trained model with the settings that were typed, its words, and these settings."""
    base, vocabulary = load_model(model_directory(run))
    if model is not None and kind_of(model) != base.kind:
        raise ValueError(f"--model {model}: the model of --fine-tune {run} is {base.kind}")
    if preset is None:
        preset = default_preset(base.kind, dataclasses.asdict(base.config))
    chosen = parse_settings(base.kind, preset, texts)
    return with_config(base, chosen.changed(base.config), str(run)), vocabulary, chosen


def _check_memory(config: ModelConfig) -> None:
    """Raise a ValueError where weights, gradients and an optimizer's two averages are known to exceed all memory."""
    with shapes_alone():
        numbers = sum(parameter.numel() for parameter in MODELS[config.kind][1](config).parameters())
    needed, there = 4 * 4 * numbers, system.memory()
    if there is not None and needed > there:
        named = [field.name for field in dataclasses.fields(config) if field.metadata.get("size")]
        sizes = {name: getattr(config, name) for name in named if getattr(config, name) is not None}
        raise ValueError(
            f"{', '.join(f'{name} {size}' for name, size in sizes.items())} make a model that takes "
            f"{needed / 2**30:,.0f} GiB to train; this machine has {there / 2**30:,.0f} GiB"
        )
