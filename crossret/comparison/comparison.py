"""A comparison: every variant trained and evaluated, one after the other, and what was measured in one place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from crossret.comparison.plot import draw_comparison
from crossret.comparison.process import run_step
from crossret.comparison.steps import TRAINING, Step
from crossret.comparison.table import check_result, comparison_table, markdown
from crossret.comparison.variants import Variant
from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus, check_boxes_agree, check_readable, fields_of_data
from crossret.evaluation.finiteness import check_features
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied
from crossret.files.json import flattened, read_json_object, write_json
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.terminal import plain, progress_bar

SETTINGS, RESULT, NAME = "settings.json", "result.json", "compare"


@dataclass(frozen=True)
class Conditions:
    """What the variants of a comparison share.

    Attributes:
        data: the data set's directory.
        split: what is evaluated on.
        seed: of every training.
        epochs: of every variant that does not set its own; None leaves the presets'.
        threads: of the CPU; None is one a core.
    """

    data: Path
    split: str = "test"
    seed: int = 0
    epochs: int | None = None
    threads: int | None = None


def run_comparison(
    variants: Sequence[Variant], conditions: Conditions, output: Path, *, command: str, console: Console
) -> dict[str, Any]:
    """Train and evaluate what is not finished yet, and write it all down after every variant.

    Args:
        variants: what to compare, each once.
        conditions: what they share.
        output: made if absent. Gets compare.json, compare.md, compare.png, and of each variant a directory: the
            training's files, settings.json, training.json and result.json, with which a variant is finished: it is not
            run again, and an unfinished one goes on from its checkpoint.
        command: what was typed, for the record.
        console: where progress is told; that of steps goes to standard error.

    Returns:
        What compare.json holds.

    Raises:
        ValueError: a variant is there twice, does not fit one of the splits or fails, or ``output`` has it with other
            settings; names the variant. Or features of any split are not finite, which is found before anything is
            written. See ``check_features``.
        OSError: the data cannot be read or ``output`` not written; BlockingIOError where another process works in it.
        KeyboardInterrupt: interrupted; finished variants are kept.
    """
    names = [variant.name for variant in variants]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"variant {twice[0]!r}: given twice")
    with occupied(output):
        corpora = _corpora(conditions)
        data = {
            split: {"images": corpus.n_images, "captions": corpus.n_captions, "fingerprint": corpus.fingerprint()}
            for split, corpus in corpora.items()
        }
        settings = {variant.name: _settings(variant, conditions, corpora, data) for variant in variants}
        report: dict[str, Any] = {
            "crossret": metadata.version("crossret"),
            "command": command,
            "split": conditions.split,
            "seed": conditions.seed,
            "data": data,
            "variants": [],
        }
        for variant in variants:
            _check(variant, settings[variant.name], directory_of(output, variant))
        if not all((directory_of(output, variant) / RESULT).exists() for variant in variants):
            for split, corpus in corpora.items():
                with progress_bar(f"reading features of {split}") as progress:
                    check_features(corpus, progress=progress)
        for number, variant in enumerate(variants, start=1):
            place = f"{variant.name} ({number} of {len(variants)})"
            directory = directory_of(output, variant)
            if (directory / RESULT).exists():
                console.print(plain(f"{place}: finished before, {directory / RESULT}"), highlight=False, soft_wrap=True)
            else:
                _run(variant, settings[variant.name], conditions, directory, place, console)
            result = read_json_object(directory / RESULT)
            check_result(result, directory / RESULT)
            report["variants"].append(result)
            _write(report, output)
        console.print(comparison_table(report))
        console.print(plain(f"Figures are in {output}: compare.json, compare.md, compare.png"), soft_wrap=True)
    return report


def directory_of(output: Path, variant: Variant) -> Path:
    """Where a variant's files are."""
    return output / variant.name.replace(" ", "-")


def _corpora(conditions: Conditions) -> dict[str, PrecomputedCorpus]:
    """The splits that are read, with the words of the training captions."""
    splits = {split: PrecomputedDataset(conditions.data, split) for split in ("train", "dev", conditions.split)}
    vocabulary = Vocabulary.build(splits["train"].captions)
    return {split: PrecomputedCorpus(data, vocabulary) for split, data in splits.items()}


def _settings(
    variant: Variant, conditions: Conditions, corpora: Mapping[str, PrecomputedCorpus], described: Mapping[str, Any]
) -> dict[str, Any]:
    """All that a variant's result depends on, as JSON has it; raises a ValueError where it does not fit a split."""
    train = corpora["train"]
    config = variant.config(**fields_of_data(MODEL_CONFIGS[variant.model], train.data, train.vocabulary))
    try:
        for corpus in corpora.values():
            check_readable(config, corpus)
        check_boxes_agree(config, *corpora.values())
    except ValueError as error:
        raise ValueError(f"variant {variant.name!r}: {error}") from error
    return {
        "model": variant.model,
        "config": json.loads(config.to_json()),
        "schedule": json.loads(variant.training(conditions.seed, conditions.epochs).to_json()),
        "split": conditions.split,
        "threads": conditions.threads,
        "data": described,
    }


def _check(variant: Variant, settings: Mapping[str, Any], directory: Path) -> None:
    """Raise a ValueError where the directory has the variant with other settings."""
    path = directory / SETTINGS
    if not path.exists():
        return
    before, now = flattened(read_json_object(path)), flattened(settings)
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            raise ValueError(
                f"variant {variant.name!r}: {path} has {name} {before.get(name)}, not {now.get(name)}; "
                "choose another directory"
            )


def _run(
    variant: Variant, settings: dict[str, Any], conditions: Conditions, directory: Path, place: str, console: Console
) -> None:
    directory.mkdir(exist_ok=True)
    write_json(directory / SETTINGS, settings)
    step = Step(
        variant.model,
        settings["config"],
        settings["schedule"],
        conditions.data,
        conditions.split,
        directory,
        conditions.threads,
    )
    try:
        training = _finished_training(directory / TRAINING)
        if training is None:
            console.print(plain(f"{place}: training ..."), highlight=False)
            training = run_step("train", step)
        console.print(plain(f"{place}: evaluating ..."), highlight=False)
        evaluation = run_step("evaluate", step)
    except (ValueError, ChildProcessError) as error:
        raise ValueError(f"variant {variant.name!r}: {error}") from error
    write_json(
        directory / RESULT, {"variant": variant.name, **settings, "training": training, "evaluation": evaluation}
    )


def _finished_training(path: Path) -> dict[str, Any] | None:
    training = read_json_object(path) if path.exists() else {}
    return training if training.get("finished") else None


def _write(report: Mapping[str, Any], output: Path) -> None:
    write_json(output / f"{NAME}.json", report)
    with atomic_write(output / f"{NAME}.md") as file:
        file.write(markdown(report).encode())
    draw_comparison(output / f"{NAME}.png", report["variants"])
