"""Writes what pages hold of the code: tables of backends and of hyper-parameters, between markers.

`make docs` runs it, and a test holds the pages to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from crossret.files.atomic import atomic_write
from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig
from crossret_kernels.backends import BACKENDS, KERNEL_DTYPES
from crossret_kernels.info import OPERATIONS

PAGES = Path(__file__).parent
END = "<!-- /generated -->"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*heads], *([*row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def backends() -> str:
    """Which dtypes each backend takes of each operation."""
    kernels = ", ".join(str(dtype).removeprefix("torch.") for dtype in KERNEL_DTYPES)
    rows = [
        [
            ", ".join(f"`{name}`" for name in names),
            *(
                ("the same, float64" if name in ("torch", "reference") else kernels) if name in has else "–"
                for name in BACKENDS
            ),
        ]
        for names, has in OPERATIONS.items()
    ]
    return table(["", *(f'"{name}"' for name in BACKENDS)], rows)


def models() -> str:
    """Every model's hyper-parameters and presets."""
    return "\n\n".join(_model(name, config) for name, config in MODEL_CONFIGS.items())


def schedule() -> str:
    """How every model is trained."""
    return table(["setting", "default", ""], _fields(TrainingConfig))


def _model(name: str, config: type[ModelConfig]) -> str:
    presets = [
        [f"`{preset}`", _settings(fields), _settings(config.schedules[preset.split("_")[0]])]
        for preset, fields in config.presets.items()
    ]
    return "\n\n".join(
        [
            f"## {name}",
            table(["preset", "hyper-parameters", "schedule"], presets),
            table(["hyper-parameter", "default", ""], _fields(config)),
        ]
    )


def _settings(fields: Mapping[str, Any]) -> str:
    return " ".join(f"`{name}={_written(value)}`" for name, value in fields.items()) or "defaults"


def _fields(config: type[Any]) -> list[list[str]]:
    fields = [field for field in dataclasses.fields(config) if "help" in field.metadata]
    return [[f"`{field.name}`", _written(field.default), field.metadata["help"]] for field in fields]


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


WRITTEN: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "backends.md": {"backends": backends},
    "models.md": {"schedule": schedule, "models": models},
}


def page(name: str) -> str:
    """A page with its generated parts made anew.

    Raises:
        ValueError: it lacks the markers of one.
    """
    text = (PAGES / name).read_text(encoding="utf-8")
    for part, make in WRITTEN[name].items():
        begin = f"<!-- generated: {part} -->"
        head, found, rest = text.partition(begin)
        _, ended, tail = rest.partition(END)
        if not (found and ended):
            raise ValueError(f"{name}: needs a line {begin!r} and, behind it, one {END!r}")
        text = f"{head}{begin}\n\n{make()}\n\n{END}{tail}"
    return text


if __name__ == "__main__":
    for name in WRITTEN:
        text = page(name)
        with atomic_write(PAGES / name) as file:
            file.write(text.encode())
