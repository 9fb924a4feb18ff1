"""A comparison: `crossret train` and `crossret evaluate` of every variant, one after the other, in one place."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console

from crossret import __version__, signals, system
from crossret.comparison.plot import draw_comparison
from crossret.comparison.table import cells_of, comparison_table, markdown
from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus, check_boxes_agree, check_readable, fields_of_data, have_tokens
from crossret.data.scenes.layout import grounding_path
from crossret.files.atomic import atomic_write
from crossret.files.directories import occupied
from crossret.files.json import read_json_lines, read_json_object, write_json
from crossret.files.toml import read_toml
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.hyperparameters.settings import Settings, texts_of
from crossret.terminal import plain
from crossret.training import CHECKPOINT, LOG

_logger = logging.getLogger(__name__)
CONFIG, TRAINING, EVALUATION, NAME = "run.toml", "training.json", "evaluation.json", "compare"


@dataclass(frozen=True)
class Conditions:
    """Conditions that the variants of a comparison share, as the options of `compare` say."""

    data: Path
    split: str = "test"
    seed: int = 0
    epochs: int | None = None
    threads: int | None = None

    @property
    def settings(self) -> list[str]:
        """Settings of every variant that does not have its own."""
        return [] if self.epochs is None else [f"epochs={self.epochs}"]


def run_comparison(
    variants: Mapping[str, Settings], conditions: Conditions, output: Path, *, command: str, console: Console
) -> dict[str, Any]:
    """Train and evaluate what is not finished yet, and write it all down after every variant.

    Args:
        variants: settings to compare, by name.
        conditions: shared by all variants.
        output: made if absent. Gets compare.json, compare.md, compare.png, and of each variant a directory: the
            training's files, training.json (its seconds and memory, over interruptions) and evaluation.json, with which
            a variant is finished: it is not run again, and an unfinished one goes on from its checkpoint.
        command: the command as typed, for the record.
        console: where progress is told; that of the commands goes to standard error.

    Returns:
        The contents of compare.json.

    Raises:
        ValueError: a variant does not fit one of the splits, or ``output`` has it with other settings or data, or with
            files that are none of a comparison; names it.
        ChildProcessError: the command of a variant failed, and has said why.
        OSError: the data cannot be read or ``output`` not written; BlockingIOError where another process works in it.
        KeyboardInterrupt: interrupted; finished variants are kept.
    """
    trained = {name: settings.with_defaults(conditions.settings) for name, settings in variants.items()}
    with occupied(output):
        corpora = _corpora(conditions)
        data, on_tokens = _check_data(trained, corpora), corpora["train"].vocabulary is None
        for name, settings in trained.items():
            _check(f"variant {name!r}", _run_of(settings, conditions, on_tokens), directory_of(output, name) / CONFIG)
            _check(f"variant {name!r}", {"split": conditions.split}, directory_of(output, name) / EVALUATION)
        _check("another comparison", {"split": conditions.split, "data": data}, output / f"{NAME}.json")
        known = {"crossret": __version__, "command": command, "split": conditions.split}
        report: dict[str, Any] = {**known, "seed": conditions.seed, "data": data, "variants": []}
        for number, (name, settings) in enumerate(trained.items(), start=1):
            place, directory = f"{name} ({number} of {len(variants)})", directory_of(output, name)
            if (directory / EVALUATION).exists():
                _tell(console, f"{place}: finished before, {directory / EVALUATION}")
            else:
                _tell(console, f"{place}: training ...")
                _train(settings, conditions, directory)
                _tell(console, f"{place}: evaluating ...")
                _evaluate(conditions, directory)
            report["variants"].append(_result(name, directory))
            write_json(output / f"{NAME}.json", report)
            with atomic_write(output / f"{NAME}.md") as file:
                file.write(markdown(report).encode())
            draw_comparison(output / f"{NAME}.png", report["variants"])
        console.print(comparison_table(report))
        _tell(console, f"Figures are in {output}: compare.json, compare.md, compare.png")
    return report


def directory_of(output: Path, name: str) -> Path:
    """Where a variant's files are."""
    return output / name.replace(" ", "-")


def _corpora(conditions: Conditions) -> dict[str, PrecomputedCorpus]:
    """Every split as the trainings read it, by name."""
    splits = {name: PrecomputedDataset(conditions.data, name) for name in ("train", "dev", conditions.split)}
    words = None if have_tokens(splits["train"], splits["dev"]) else Vocabulary([])  # the trainings know them
    return {name: PrecomputedCorpus(split, words) for name, split in splits.items()}


def _check_data(variants: Mapping[str, Settings], corpora: Mapping[str, PrecomputedCorpus]) -> dict[str, Any]:
    """Sizes and fingerprints of every split; a ValueError where a variant does not fit one, hours before its turn."""
    for name, settings in variants.items():
        config = settings.config(**fields_of_data(MODEL_CONFIGS[settings.model], corpora["train"]))
        try:
            for corpus in corpora.values():
                check_readable(config, corpus)
            check_boxes_agree(config, *corpora.values())
        except ValueError as error:
            raise ValueError(f"variant {name!r}: {error}") from error
    return {
        name: {"images": part.n_images, "captions": part.n_captions, "fingerprint": part.fingerprint()}
        for name, part in corpora.items()
    }


def _run_of(settings: Settings, conditions: Conditions, on_tokens: bool) -> dict[str, Any]:
    """Settings that a variant's run.toml must have, by name."""
    captions = {"vocabulary_size": 0, "text_dim": 1} if on_tokens else {"vocabulary_size": 1}
    config, schedule = settings.config(image_dim=1, **captions), settings.training(seed=conditions.seed)
    run: dict[str, Any] = {"data": str(conditions.data.resolve()), "model": settings.model, "preset": settings.preset}
    run |= {"settings": [*texts_of(config), *texts_of(schedule)], "seed": conditions.seed}
    return run if conditions.threads is None else {**run, "threads": conditions.threads}


def _check(name: str, now: Mapping[str, Any], path: Path) -> None:
    """Raise a ValueError where there is a file that has something else of this."""
    before = {} if not path.exists() else read_toml(path) if path.suffix == ".toml" else read_json_object(path)
    for field, value in now.items() if before else ():
        there = before.get(field)
        if there != value:
            if isinstance(value, list) and isinstance(there, list):  # the first of many settings that differs
                there, value = next((one, other) for one, other in zip_longest(there, value) if one != other)
            raise ValueError(f"{name}: {path} has {field} {there}, not {value}; choose another directory")


def _train(settings: Settings, conditions: Conditions, directory: Path) -> None:
    """Train, or go on from the checkpoint; training.json says of a session that was killed that its time is unknown."""
    directory.mkdir(exist_ok=True)
    path = directory / TRAINING
    record: dict[str, Any] = {"seconds": 0.0, "seconds_known": True, "sessions": 0, "peak_mebibytes": None}
    record |= {"finished": False, "running": False, **(read_json_object(path) if path.exists() else {})}
    if record["finished"]:
        return
    words = ["train", str(conditions.data), "--output", str(directory), "--model", settings.model]
    words += ["--preset", settings.preset, "--seed", str(conditions.seed), *_threads(conditions)]
    words += [word for text in settings.typed for word in ("--set", text)]
    words += ["--resume"] if (directory / CHECKPOINT).exists() else []
    record |= {"seconds_known": record["seconds_known"] and not record["running"], "running": True}
    record["sessions"] += 1
    write_json(path, record)
    began = time.perf_counter()
    try:
        record["peak_mebibytes"] = run_command(words)
        record["finished"] = True
    finally:
        record |= {"seconds": record["seconds"] + time.perf_counter() - began, "running": False}
        write_json(path, record)


def _evaluate(conditions: Conditions, directory: Path) -> None:
    words = ["evaluate", str(directory), str(conditions.data), "--split", conditions.split, *_threads(conditions)]
    words += ["--pointing-game"] if grounding_path(conditions.data, conditions.split).exists() else []
    run_command([*words, "--output", str(directory / EVALUATION)])


def _threads(conditions: Conditions) -> list[str]:
    return [] if conditions.threads is None else ["--threads", str(conditions.threads)]


def run_command(words: Sequence[str]) -> float | None:
    """A crossret command in a process of its own, whose peak memory is its own; it shows its progress and errors.

    Returns:
        The most memory that it had, in MiB; None where the system does not say.

    Raises:
        ChildProcessError: it failed. KeyboardInterrupt: once it has ended, too: of a training there is a checkpoint.
    """
    # A session of its own: Ctrl-C does not reach it, this process alone acts on it.
    command = [sys.executable, "-m", "crossret", *words]
    _logger.info("%s", shlex.join(command))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        peak = system.wait_for(process)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait()
        except KeyboardInterrupt:  # the second: not even a checkpoint is wanted
            process.kill()
            process.wait()
        raise
    if process.returncode:
        how = "failed, as it says" if process.returncode == 2 else signals.how_it_ended(process.returncode)
        raise ChildProcessError(f"crossret {words[0]} {words[1]} {how}")
    return peak


def _result(name: str, directory: Path) -> dict[str, Any]:
    """Record of a finished variant from its files; raises a ValueError where they are not a comparison's."""
    training, log = read_json_object(directory / TRAINING), read_json_lines(directory / LOG)
    settings, evaluation = read_toml(directory / CONFIG), read_json_object(directory / EVALUATION)
    result = {"variant": name, **settings, "training": training, "evaluation": evaluation}
    try:
        training["epochs"] = log[-1]["epoch"]
        cells_of(result)
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{directory}: not a finished variant ({why}); remove it, to have it done again") from error
    return result


def _tell(console: Console, text: str) -> None:
    console.print(plain(text), highlight=False, soft_wrap=True)
