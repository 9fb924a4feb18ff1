"""The command that lists the papers' settings: `presets`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from crossret.cli.options import kind_of
from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig
from crossret.hyperparameters.settings import settable, spelt

_CAPTION = (
    "An empty cell says the same as the one above it. Where a paper is silent on its schedule (HAN and MHSAN on "
    "clipping gradients, MHSAN on batches), it is SCAN's."
)


# Settings of a schedule that are always listed; others only where they differ from the default.
_LISTED = (
    "epochs",
    "decay",
    "decay_epochs",
    "batch_size",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "gradient_norm",
)


def presets(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Which model's; by default all.", metavar=f"[{'|'.join(MODEL_CONFIGS)}]", show_default=False
        ),
    ] = None,
) -> None:
    """List the settings of the papers, by model.

    Prints each preset of `train`, the settings that it stands for where they differ
    from the model's defaults, and the schedule that comes with it. "scenes" is for
    rendered scenes. Of one model also all that `train --set` takes, what it means,
    its values and its default.

    \b
    Examples:
      crossret presets
      crossret presets han
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Presets", caption=_CAPTION)
    for heading in ("model", "preset", "hyper-parameters", "schedule"):
        table.add_column(heading, no_wrap=heading in ("model", "preset"))
    for kind in MODEL_CONFIGS if model is None else [kind_of(model, "model")]:
        config, shown, before = MODEL_CONFIGS[kind], kind, ""
        for name in config.presets:
            schedule = _schedule(config, name)
            table.add_row(shown, name, _differences(config, name), "" if schedule == before else schedule)
            shown, before = "", schedule
        table.add_section()
    console = Console(emoji=False, markup=False, highlight=False)
    console.print(table)
    if model is not None:
        fields = Table(title=f"Hyper-parameters of {model}")
        for heading in ("setting", "default", "meaning"):
            fields.add_column(heading, no_wrap=heading == "setting")
        for name, default, meaning in _fields(MODEL_CONFIGS[model]):
            fields.add_row(name, default, meaning)
        console.print(fields)


def _fields(config: type[ModelConfig]) -> Iterator[tuple[str, str, str]]:
    """(name, default, meaning) of all that may be set, with the choices of those that have some."""
    kinds = settable(config)
    for field in dataclasses.fields(config):
        if field.name in kinds:
            choices = get_args(kinds[field.name]) if get_origin(kinds[field.name]) is Literal else ()
            listed = f" One of {', '.join(choices)}." if choices else ""
            yield field.name, spelt(field.default), f"{field.metadata['help']}{listed}"


def _differences(config: type[ModelConfig], preset: str) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    changed = {name: value for name, value in config.presets[preset].items() if value != defaults[name]}
    return _spelt(changed) or "the defaults"


def _schedule(config: type[ModelConfig], preset: str) -> str:
    schedule = config.schedule(preset)
    values = {name: getattr(schedule, name) for name in _LISTED}
    others = [field for field in dataclasses.fields(TrainingConfig) if field.name not in _LISTED]
    values |= {field.name: value for field in others if (value := getattr(schedule, field.name)) != field.default}
    return _spelt(values)


def _spelt(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={spelt(value)}" for name, value in values.items())
