"""The command that lists the papers' settings: `presets`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from crossret.cli.options import kind_of, spelt_with_value
from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig

_CAPTION = (
    "An empty cell says the same as the one above it. Where a paper is silent on its schedule (HAN and MHSAN on "
    "clipping gradients, MHSAN on batches), it is SCAN's."
)


# Of a schedule, what is always listed; the rest where it is not the default.
_LISTED = ("epochs", "batch_size", "optimizer", "learning_rate", "weight_decay", "gradient_norm")


def presets(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Which model's; by default all.", metavar=f"[{'|'.join(MODEL_CONFIGS)}]", show_default=False
        ),
    ] = None,
) -> None:
    """List the settings of the papers, by model.

    Prints each preset of `train`, the options that it stands for where they differ
    from the model's defaults, and the schedule that comes with it. "scenes" is for
    rendered scenes.

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
    Console(emoji=False, markup=False, highlight=False).print(table)


def _differences(config: type[ModelConfig], preset: str) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    changed = {name: value for name, value in config.presets[preset].items() if value != defaults[name]}
    return _spelt(changed) or "the defaults"


def _schedule(config: type[ModelConfig], preset: str) -> str:
    schedule = config.schedule(preset)
    values = {name: getattr(schedule, name) for name in _LISTED}
    others = [field for field in dataclasses.fields(TrainingConfig) if field.name not in (*_LISTED, "decay_epochs")]
    values |= {field.name: value for field in others if (value := getattr(schedule, field.name)) != field.default}
    decays = (spelt_with_value("decay_epoch", epoch) for epoch in schedule.decay_epochs)
    return " ".join([_spelt(values), *decays])


def _spelt(values: Mapping[str, Any]) -> str:
    return " ".join(spelt_with_value(name, value) for name, value in values.items())
