"""Writes tables of backends, of promises, of hyper-parameters and of what models reach into pages, between markers.

`make docs` runs it, and a test holds the pages to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from crossret.comparison.table import cells_of, markdown
from crossret.files.atomic import atomic_write
from crossret.files.json import parse_json_object
from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig, TrainingConfig
from crossret_kernels.backends import BACKENDS, KERNEL_DTYPES
from crossret_kernels.info import OPERATIONS
from crossret_kernels.promises import BITS, DIGITS, GRADIENTS, RESULTS, unit_of
from crossret_kernels.promises import OPERATIONS as PROMISED

PAGES = Path(__file__).parent
END = "<!-- /generated -->"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*heads], *([*row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def backends() -> str:
    """Which dtypes each backend takes of each operation."""
    kernels = ", ".join(str(dtype).removeprefix("torch.") for dtype in KERNEL_DTYPES)
    others = {
        "cuda": kernels.replace("float32", "float32 in TF32"),
        **dict.fromkeys(("torch", "reference"), "the same, float64"),
    }
    rows = [
        [
            ", ".join(f"`{name}`" for name in names),
            *(others.get(name, kernels) if name in has else "–" for name in BACKENDS),
        ]
        for names, has in OPERATIONS.items()
    ]
    return table(["", *(f'"{name}"' for name in BACKENDS)], rows)


def bits() -> str:
    """Which backends promise the same bits, and when."""
    heads = ["", "run to run, on one machine", "by any number of threads", "by another instruction set or GPU"]
    said = {True: "the same bits", False: "within the errors below", None: "–"}
    return table(heads, [[f'"{name}"', *(said[same] for same in promised)] for name, promised in BITS.items()])


def errors() -> str:
    """By backend, operation and dtype what errors are counted in."""
    rows: dict[tuple[str, ...], list[str]] = {}
    served = {name: has for names, has in OPERATIONS.items() for name in names}
    for backend, operation in product(("cpu", "torch"), PROMISED):
        if backend not in served[operation]:
            continue
        units = (str(unit_of(operation, backend, dtype)).removeprefix("torch.") for dtype in KERNEL_DTYPES)
        rows.setdefault((f'"{backend}"', *units), []).append(f"`{operation}`")
    said = (
        f"Results are off by at most {RESULTS} times, gradients by {GRADIENTS} times what eager PyTorch loses at the "
        f"precision in this table, and {DIGITS} ε of it beside."
    )
    heads = ["", "", *(f"of {str(dtype).removeprefix('torch.')}" for dtype in KERNEL_DTYPES)]
    return f"{said}\n\n{table(heads, ([row[0], ', '.join(names), *row[1:]] for row, names in rows.items()))}"


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


RECORDS = PAGES.parent / "benchmarks" / "results"
COMPARISONS = sorted((RECORDS / "comparison").glob("*.json"))  # by day: of the same scenes, each of other models
REAL = max((RECORDS / "real").glob("*.md"))  # the newest
PAPERS = {
    "scan": "[Stacked cross attention](https://arxiv.org/abs/1803.08024), Lee et al. 2018",
    "sman": "[Stacked multi-modal attention](https://doi.org/10.1109/TCYB.2020.2985716), Ji et al. 2020",
    "han": "[Heterogeneous attention](https://doi.org/10.1145/3404835.3462924), Yu et al. 2021",
    "mhsan": "[Multi-head self-attention](https://arxiv.org/abs/2001.03712), Park et al. 2020",
    "oan": "[Inter- and intra-modal attention](https://doi.org/10.1145/3323873.3325043), Huang et al. 2019",
    "vse": "[VSE++](https://arxiv.org/abs/1707.05612), Faghri et al. 2018, their baseline",
    "laps": "[Linguistic-aware patch slimming](https://openaccess.thecvf.com/content/CVPR2024/html/"
    "Fu_Linguistic-Aware_Patch_Slimming_Framework_for_Fine-grained_Cross-Modal_Alignment_CVPR_2024_paper.html), "
    "Fu et al. 2024",
}


def compared() -> str:
    """Figures of all models, as `crossret compare` wrote them."""
    return "\n\n".join(markdown(parse_json_object(path.read_bytes(), path)).strip() for path in COMPARISONS)


def real() -> str:
    """Recall on real pictures, as `make real` recorded it."""
    return REAL.read_text(encoding="utf-8").strip()


def papers() -> str:
    """Every model with its paper and what it reaches on scenes."""
    variants = [x for path in COMPARISONS for x in parse_json_object(path.read_bytes(), path)["variants"]]
    reached = {variant["model"]: cells_of(variant)["R@1"].replace("/", " / ") for variant in variants}
    commands = {name: f"`… --model {name} --preset f30k`" for name in PAPERS}
    commands["scan"] = "`crossret train DATA --output RUN --preset f30k_t2i_avg`"
    rows = [[f"`{name}`", paper, reached[name], commands[name]] for name, paper in PAPERS.items()]
    return table(["model", "paper", "R@1 on scenes: sentences / images", "train it"], rows)


WRITTEN: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "../README.md": {"models": papers},
    "backends.md": {"backends": backends, "bits": bits, "errors": errors},
    "benchmarks.md": {"models": compared, "real": real},
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
