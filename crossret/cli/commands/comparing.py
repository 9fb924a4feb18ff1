"""The command that compares models: `compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.errors import Interrupted
from crossret.cli.options import DataDirectory, Seed, Threads, option, spelling
from crossret.hyperparameters import MODEL_CONFIGS


def compare(
    data: DataDirectory,
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT]...",
            help='A model, perhaps with hyper-parameters or its schedule set: scan, "han layers=3 p=4 epochs=6". '
            "By default all models.",
        ),
    ] = None,
    *,
    output: Annotated[Path, option("Directory for the table and a training a variant.", file_okay=False)],
    preset: Annotated[str, option("What variants start from, where they do not set it: preset=coco_t2i_lse.")] = (
        "scenes"
    ),
    split: Annotated[str, option("Which SPLIT_ims.npy and SPLIT_caps.txt to evaluate on.")] = "test",
    seed: Seed = 0,
    epochs: Annotated[
        int | None, option("Passes over the training captions, where variants do not set them.", min=1)
    ] = None,
    threads: Threads = None,
) -> None:
    """Train models and compare them.

    Trains and evaluates each variant in a process of its own, one after the other,
    on the same data with the same seed, and writes one table: retrieval, pointing
    game, parameters, seconds, memory. Repeat an interrupted command to go on:
    finished variants are kept, the one begun resumes. With other variants and the
    same --output the tables are of those named now alone; finished trainings of the
    others stay in their directories.

    \b
    Examples:
      crossret compare scenes --output runs/models
      crossret compare scenes scan "scan negatives=hardest clip_slope=0" --output runs/scan
      crossret compare scenes "han layers=0" han "han layers=3 p=4" --output runs/han --epochs 2
    """
    from rich.console import Console

    from crossret.comparison.comparison import Conditions, run_comparison
    from crossret.hyperparameters.settings import parse_variant

    variants = variants or list(MODEL_CONFIGS)
    chosen = {"preset": preset, "split": split, "seed": seed, "epochs": epochs, "threads": threads}
    words = ["crossret", "compare", data, *variants, "--output", output]
    for name, value in chosen.items():
        words += [] if value is None else [spelling(name), value]
    parsed = [parse_variant(text, preset) for text in variants]
    for number, (name, _) in enumerate(parsed):
        if name in dict(parsed[:number]):
            raise ValueError(f"variant {name!r}: given twice")
    try:
        run_comparison(
            dict(parsed),
            Conditions(data, split, seed, epochs, threads),
            output,
            command=shlex.join(map(str, words)),
            console=Console(emoji=False),
        )
    except KeyboardInterrupt:
        raise Interrupted(f"{output} holds what was done, the same command goes on") from None
