"""The two steps of a variant, timed: training, which resumes, and evaluation."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from crossret import system
from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.scenes.layout import grounding_path
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.explain.grounding import GroundedSplit, play_pointing_game
from crossret.files.json import read_json_lines, read_json_object, write_json
from crossret.hyperparameters import MODEL_CONFIGS, TrainingConfig
from crossret.machine import describe_machine
from crossret.models import MODELS, Matcher
from crossret.models.checkpoints import load_model
from crossret.models.encoded import Encoded
from crossret.terminal import progress_bar
from crossret.training import BEST, CHECKPOINT, LOG, ResumedElsewhere, train
from crossret.training.callbacks import STEP_FIELDS
from crossret.training.summary import count_learnt

TRAINING = "training.json"


@dataclass(frozen=True)
class Step:
    """What both steps need to know of a variant.

    Attributes:
        model: its name.
        config, schedule: its hyper-parameters and how it is trained, as JSON has them.
        data: the data set's directory.
        split: what it is evaluated on.
        directory: where its files are.
        threads: of the CPU; None is one a core.
    """

    model: str
    config: dict[str, Any]
    schedule: dict[str, Any]
    data: Path
    split: str
    directory: Path
    threads: int | None


def train_variant(step: Step) -> dict[str, Any]:
    """Train, or go on from the checkpoint in ``step.directory``.

    Its training.json counts seconds over interruptions. "seconds_known" is false where an earlier process was killed
    and could not write down its own.

    Returns:
        What training.json holds in the end: "finished", "seconds" and "seconds_known", "sessions" (processes that it
        took), "peak_mebibytes" (the largest of theirs), "epochs", "best_epoch" and "dev_rsum", "parameters" (how many
        numbers are learnt), and "loss", the terms of the last epoch (see ``last_terms``).

    Raises:
        ValueError, OSError: as ``crossret.training.train``.
    """
    _use_threads(step)
    data = PrecomputedDataset(step.data, "train")
    vocabulary = Vocabulary.build(data.captions)
    schedule = TrainingConfig.from_dict(step.schedule)
    torch.manual_seed(schedule.seed)
    model = MODELS[step.model][1](MODEL_CONFIGS[step.model].from_dict(step.config))
    corpora = [PrecomputedCorpus(part, vocabulary) for part in (data, PrecomputedDataset(step.data, "dev"))]
    resume = (step.directory / CHECKPOINT).exists()
    clock = _Clock(step.directory / TRAINING, resume)
    with clock, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResumedElsewhere)  # "sessions" tells
        result = train(model, corpora[0], corpora[1], schedule, step.directory, resume=resume)
    clock.write(
        finished=True,
        epochs=result.epochs_run,
        best_epoch=result.best_epoch,
        dev_rsum=result.best_rsum,
        parameters=count_learnt(model, schedule),
        loss=last_terms(read_json_lines(step.directory / LOG)),
    )
    return clock.contents


def evaluate_variant(step: Step) -> dict[str, Any]:
    """Measure the best epoch's model.

    Returns:
        "retrieval", as ``RetrievalMetrics.as_dict``; "pointing_game" of the map by which the model is to be judged,
        None where it has none or the data are no rendered scenes; "encoding_seconds" of the split's images and
        captions, read from the disk; "scoring" of all with all: "pairs", "seconds", "pairs_per_second";
        "peak_mebibytes" of the process until then; "machine".

    Raises:
        ValueError, OSError: the model or the data cannot be read.
    """
    _use_threads(step)
    model, vocabulary = load_model(step.directory / BEST)
    corpus = PrecomputedCorpus(PrecomputedDataset(step.data, step.split), vocabulary)
    started = time.perf_counter()
    with progress_bar("encoding") as progress:
        images, captions = encode_dataset(model, corpus, progress=progress)
    encoded = time.perf_counter()
    score_matrix(model, images[:2], captions[:2])  # what is set up once a process
    began = time.perf_counter()
    with progress_bar("scoring") as progress:
        scores = score_matrix(model, images, captions, corpus=corpus, progress=progress)
    seconds = time.perf_counter() - began
    return {
        "retrieval": retrieval_metrics(scores, corpus.image_of_caption).as_dict(),
        "encoding_seconds": encoded - started,
        "scoring": {"pairs": scores.size, "seconds": seconds, "pairs_per_second": scores.size / seconds},
        "peak_mebibytes": system.peak_mebibytes(),
        "pointing_game": _pointing_game(step, model, corpus, images, captions),
        "machine": describe_machine(),
    }


def last_terms(log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The terms of the loss of the last epoch with lines of steps: means over its lines, each a mean over some steps.

    A training with fewer steps than a line stands for has the last epoch's "loss" alone.
    """
    steps = [entry for entry in log if entry["kind"] == "step"]
    if not steps:
        return {"loss": log[-1]["loss"]}
    last = [entry for entry in steps if entry["epoch"] == steps[-1]["epoch"]]
    return {name: sum(entry[name] for entry in last) / len(last) for name in last[0] if name not in STEP_FIELDS}


class _Clock:
    """A context whose seconds are added to those that a file holds."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.contents: dict[str, Any] = {"seconds": 0.0, "seconds_known": True, "sessions": 0, "peak_mebibytes": 0.0}
        if resume and path.exists():
            known = read_json_object(path)
            for name, value in self.contents.items():
                if type(known.get(name)) is not type(value):
                    raise ValueError(f"{path}: its {name} is {known.get(name)!r}, not {type(value).__name__}")
            self.contents.update(known)
        elif resume:
            self.contents["seconds_known"] = False
        if self.contents.pop("running", False):
            self.contents["seconds_known"] = False

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self.contents["sessions"] += 1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.write(finished=False, running=True)

    def __exit__(self, *_: object) -> None:
        self.contents["seconds"] += time.perf_counter() - self._began
        self.contents["peak_mebibytes"] = max(self.contents["peak_mebibytes"], system.peak_mebibytes())
        del self.contents["running"]
        self.write()

    def write(self, **values: Any) -> None:
        self.contents.update(values)
        write_json(self.path, self.contents)


def _pointing_game(
    step: Step, model: Matcher, corpus: PrecomputedCorpus, images: Encoded, captions: Encoded
) -> dict[str, Any] | None:
    if not grounding_path(step.data, step.split).exists():
        return None
    split = GroundedSplit.load(step.data, step.split, corpus.data, images, captions, max_words=model.config.max_words)
    games = play_pointing_game(model, split)
    # Of the first map, the judged one, what stands for all of its queries comes last.
    return asdict([game for game in games if game.map == games[0].map][-1]) if games else None


def _use_threads(step: Step) -> None:
    if step.threads is not None:
        torch.set_num_threads(step.threads)
