"""The options of `train` that are the fields of its ``TrainingConfig``, which --set takes as well."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args, get_origin

from crossret.cli.options import option
from crossret.cli.signatures import with_fields
from crossret.hyperparameters import TrainingConfig
from crossret.hyperparameters.config import NONE, without_none
from crossret.hyperparameters.settings import settable, spelt


def _option_of(field: dataclasses.Field[Any], hint: Any) -> Any:
    """Flags and choices are a shell's to complete; all else is a text, which the settings' parser reads."""
    kind, may_be_none = without_none(hint)
    if kind is bool or get_origin(kind) is Literal:
        return Annotated[kind | None, option(field.metadata["help"])]
    several = get_origin(kind) is tuple
    name = f"{'int' if get_args(kind)[0] is int else 'text'},..." if several else kind.__name__
    metavar = f"<{name}|{NONE}>" if may_be_none else f"<{name}>"
    return Annotated[str | None, option(field.metadata["help"], metavar=metavar)]


ScheduleOptions = dataclasses.make_dataclass(
    "ScheduleOptions",
    [
        (field.name, _option_of(field, hint), None)
        for field in dataclasses.fields(TrainingConfig)
        if (hint := settable(TrainingConfig).get(field.name)) is not None
    ],
)
"""None is the preset's value."""

with_schedule_options = with_fields("schedule", ScheduleOptions)


def settings_of_options(settings: list[str] | None, **schedule: Any) -> list[str]:
    """Settings of --set and of the other options, as --set takes them."""
    options = [f"{name}={spelt(value)}" for name, value in schedule.items() if value is not None]
    return [*(settings or []), *options]
