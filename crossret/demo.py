"""The main job on real input: render scenes, train a model with the fused kernels, evaluate it, show where it looks.

From given features of regions, or from the pictures alone, through an encoder that learns to see meanwhile.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from crossret import __version__
from crossret.data import PrecomputedDataset, Vocabulary, render_scenes
from crossret.data.corpus import PrecomputedCorpus, fields_of_data
from crossret.data.scenes.grounding import read_grounding
from crossret.data.scenes.layout import grounding_path
from crossret.encoders import PictureTokens
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.explain.grounding import (
    GroundedSplit,
    boxes_of_tokens,
    draw_captions,
    play_pointing_game,
    spaced_captions,
)
from crossret.explain.page.writing import write_page
from crossret.explain.pointing import PointingGame
from crossret.explain.split import ScoredSplit, split_page
from crossret.extraction import PictureEncoder, PictureSplit, load_picture_encoder
from crossret.extraction.untrained import save_untrained_encoder
from crossret.files.directories import occupied
from crossret.files.json import read_json, write_json
from crossret.hyperparameters import TrainingConfig
from crossret.machine import describe_machine
from crossret.models import MODELS, Matcher
from crossret.models.base import encoder_of
from crossret.models.checkpoints import load_model, with_config
from crossret.models.encoded import Encoded
from crossret.terminal import plain, pointing_table, progress_bar, retrieval_table
from crossret.training import BEST, CHECKPOINT, train
from crossret.training.callbacks import Curves
from crossret_kernels.extending import ENVIRONMENT_VARIABLE, serving

PRESET = "scenes"
PICTURES, ON_PAGE = 4, 100  # captions that are drawn, and that the page shows

# From pictures, a training by the hardest negatives follows one by the sum of all, in small batches. By the hardest an
# encoder that knows nothing learns nothing; by the sum it stops at colours and sizes, which tell most pictures apart.
FIRST: dict[str, Any] = {"epochs": 1, "decay_epochs": (1,), "batch_size": 32}

# Written before anything else: a directory with this file is an earlier demo's, and its contents may be replaced.
MARK = "crossret-demo.json"
_MARK_CONTENTS = {"format": "crossret demo 1"}
NO_KERNELS = "mhsan", "vse", "laps"  # models whose scores have no kernels to compare with the reference
# The einsum reference materialises images * captions * words * dimensions numbers: a subset of the test is timed.
TIMED_IMAGES, TIMED_CAPTIONS, REPEATS = 64, 128, 3


def run_demo(
    output: Path,
    *,
    model: str,
    images: int,
    epochs: int | None,
    seed: int,
    console: Console,
    from_pictures: bool = False,
) -> dict[str, Any]:
    """Do the whole job in ``output`` and return what ``output/report.json`` says.

    Args:
        output: created if absent. Gets scenes/, model/ with curves.png, report.html, report.json, attention/*.png and
            crossret-demo.json, which marks it as a demo's: what an earlier demo left there is replaced.
        model: which of ``MODELS``; it is trained with its preset "scenes".
        images: training images; an eighth as many are rendered for development and a quarter for the test.
        epochs: passes over the training captions, the last of them at a lower learning rate; None takes the preset's.
        seed: of the scenes and of the training.
        console: where steps and tables are printed.
        from_pictures: whether the model gets the pictures, not features of their regions, and reads them through a
            small encoder, ``output/encoder``, that starts with random weights; ``FIRST`` comes before ``epochs``.

    Raises:
        FileExistsError: ``output`` holds anything that is not an earlier demo's.
        OSError: ``output`` cannot be written.
        ValueError: no model has this name, or an encoder's package is missing.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, not {model!r}")
    with occupied(output):
        _claim(output)
        if from_pictures:
            save_untrained_encoder(output / "encoder", seed=seed)
        return _run(output, model, images, epochs, seed, console, from_pictures)


def _run(
    output: Path, model: str, images: int, epochs: int | None, seed: int, console: Console, from_pictures: bool
) -> dict[str, Any]:
    config_class, _ = MODELS[model]
    lengths = {} if epochs is None else {"epochs": epochs, "decay_epochs": (max(1, epochs - 1),)}
    schedule = config_class.schedule(PRESET, seed=seed, checkpoint_every=10**6, **lengths)
    steps = _Steps(console)
    scenes, run = output / "scenes", output / "model"
    counts = {"train": images, "dev": images // 8, "test": images // 4}
    with steps.step("render", f"Rendering {sum(counts.values()):,} scenes"), progress_bar("rendering") as progress:
        render_scenes(
            scenes, train=counts["train"], dev=counts["dev"], test=counts["test"], seed=seed, progress=progress
        )
    what = f"{model.upper()} and the encoder of its pictures" if from_pictures else model.upper()
    with steps.step("train", f"Training {what} for {schedule.epochs} epochs"):
        through = output / "encoder" if from_pictures else None
        trained, vocabulary = _train(model, scenes, run, schedule, through, console)
    with steps.step("evaluate", f"Scoring {counts['test']:,} test images with their captions"):
        encoder = encoder_of(trained)
        corpus = PrecomputedCorpus(_split(scenes, "test", None if encoder is None else encoder.reader), vocabulary)
        encoded = encode_dataset(trained, corpus)
        started = time.perf_counter()
        scores = score_matrix(trained, *encoded, corpus=corpus)
        pairs_per_second = scores.size / (time.perf_counter() - started)
        metrics = retrieval_metrics(scores, corpus.image_of_caption)
    comparison = {}
    if model not in NO_KERNELS:
        with steps.step("compare", "Timing the einsum reference on a part of them"):
            comparison = _time_backends(trained, *encoded)
    with steps.step("explain", "Asking the model where it looks"):
        boxes = boxes_of_tokens(trained, corpus)
        test = GroundedSplit.load(scenes, "test", corpus, *encoded, trained.config, boxes=boxes)
        games = play_pointing_game(trained, test)
        pictures = _draw(trained, test, output / "attention")
        page = split_page(
            trained,
            corpus,
            spaced_captions(test, ON_PAGE),
            name="test",
            scenes=scenes,
            grounding=read_grounding(grounding_path(scenes, "test")),
            scored=ScoredSplit(*encoded, scores),
        )
        write_page(page, output / "report.html")
    report = {
        "crossret": __version__,
        "machine": describe_machine(),
        "images": counts,
        "seed": seed,
        "epochs": schedule.epochs,
        "model": {"kind": model, **asdict(trained.config)},
        **({} if encoder is None else {"encoder": _described(encoder)}),
        "retrieval": metrics.as_dict(),
        "scoring": {"pairs": scores.size, "pairs_per_second": pairs_per_second, **comparison},
        "pointing_game": [asdict(game) for game in games],
        "pictures": pictures,
        "seconds": {name: round(value, 2) for name, value in steps.seconds.items()},
    }
    write_json(output / "report.json", report)
    console.print(retrieval_table(metrics, f"Retrieval on {counts['test']:,} test images"))
    if len(games) > 1:
        console.print(pointing_table(games, "Pointing game"))
    console.print(_figures_table(report, games[0] if len(games) == 1 else None))
    for line in (
        f"Open {output / 'report.html'} to see where the model looks, word by word",
        f"Pictures and figures are in {output}: attention/, model/curves.png, report.json",
    ):
        console.print(plain(line), soft_wrap=True)
    return report


def _claim(output: Path) -> None:
    """Mark a new or empty directory as a demo's; refuse any other but an earlier demo's.

    Hidden files do not count: a mark whose writer was killed leaves one.
    """
    mark = output / MARK
    if mark.is_file():
        if read_json(mark) != _MARK_CONTENTS:
            raise FileExistsError(f"{mark}: not the mark of a demo of this version; choose another directory")
    elif any(not path.name.startswith(".") for path in output.iterdir()):
        raise FileExistsError(f"{output}: not empty, and not an earlier demo's; choose another directory")
    else:
        write_json(mark, _MARK_CONTENTS)


class _Steps:
    """Announces the steps of the job and keeps how long each took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        self.console.print(f"{text} ...", highlight=False)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def _split(scenes: Path, name: str, reader: PictureEncoder[Any] | None) -> PrecomputedDataset:
    """Features of regions, or pictures for an encoder."""
    return PrecomputedDataset(scenes, name) if reader is None else PictureSplit(scenes, name, reader)


def _train(
    model: str, scenes: Path, run: Path, schedule: TrainingConfig, encoder: Path | None, console: Console
) -> tuple[Matcher, Vocabulary | None]:
    """The model that was best on the development set; with an encoder's folder it reads pictures through that."""
    for directory in (run, run / "first"):
        (directory / CHECKPOINT).unlink(missing_ok=True)  # an earlier demo's: this one starts anew
    reader = None if encoder is None else load_picture_encoder(encoder)
    data = _split(scenes, "train", reader)
    vocabulary = Vocabulary.build(data.captions)
    torch.manual_seed(schedule.seed)
    config_class, model_class = MODELS[model]
    learnt, judged = (PrecomputedCorpus(part, vocabulary) for part in (data, _split(scenes, "dev", reader)))
    made = model_class(config_class.preset(PRESET, **fields_of_data(config_class, learnt)))
    if reader is not None:
        made.read_pictures_by(reader)
    if reader is not None and getattr(made.config, "negatives", None) == "sum":
        console.print(
            f"  first {FIRST['epochs']} against all negatives, then these against the hardest", highlight=False
        )
        train(made, learnt, judged, replace(schedule, **FIRST), run / "first", callbacks=[Curves()])
        made, _ = load_model(run / "first" / BEST)
        made = with_config(made, replace(made.config, negatives="hardest"), str(run / "first"))
    train(made, learnt, judged, schedule, run, callbacks=[Curves()])
    return load_model(run / BEST)


def _described(encoder: PictureTokens) -> dict[str, Any]:
    numbers = sum(weight.numel() for weight in encoder.module.parameters())
    return {"kind": type(encoder.module).__name__, "parameters": numbers}


def _time_backends(model: Matcher, images: Encoded, captions: Encoded) -> dict[str, Any]:
    """Median seconds of the model's own way and of the einsum reference on one part of the test, and their ratio."""
    images, captions = images[:TIMED_IMAGES], captions[:TIMED_CAPTIONS]

    def median_seconds() -> float:
        seconds = []
        for _ in range(1 + REPEATS):  # the first warms up
            started = time.perf_counter()
            model.score(images, captions)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])

    with torch.inference_mode():
        fused = median_seconds()
        with _scored_by("reference"):
            reference = median_seconds()
    return {
        "backend": serving(images.sequences.device, images.sequences.dtype),
        "compared_pairs": len(images) * len(captions),
        "fused_seconds": fused,
        "reference_seconds": reference,
        "speed_up": reference / fused,
    }


@contextmanager
def _scored_by(backend: str) -> Iterator[None]:
    """Scores are of this backend meanwhile, whatever the environment says."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = backend
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT_VARIABLE]
        else:
            os.environ[ENVIRONMENT_VARIABLE] = before


def _draw(model: Matcher, test: GroundedSplit, directory: Path) -> list[str]:
    """Pictures of a few captions, in the place of an earlier demo's."""
    for path in directory.glob("[0-9]*.png"):
        path.unlink()
    return draw_captions(directory, model, test, spaced_captions(test, PICTURES))


def _figures_table(report: dict[str, Any], game: PointingGame | None) -> Table:
    """Speed and, of a model with a single pointing game, that; of several there is a table of their own."""
    scoring, machine = report["scoring"], report["machine"]
    table = Table(title=plain(f"{machine['cpu']}, {machine['threads']} threads"), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    backend = f", backend {scoring['backend']}" if "backend" in scoring else ""
    table.add_row(f"pairs scored a second (whole test set{backend})", f"{scoring['pairs_per_second']:,.0f}")
    if "speed_up" in scoring:
        table.add_row(
            f"speed-up over the einsum reference ({scoring['compared_pairs']:,} pairs)", f"{scoring['speed_up']:.1f} x"
        )
    if game is not None:
        for rule, right, chance in (
            ("overlaps the object it names", game.accuracy, game.chance),
            ("has its centre in that object's box", game.centre_accuracy, game.centre_chance),
        ):
            table.add_row(f"pointing game: a noun's strongest region {rule}", f"{right:.1%}")
            table.add_row("    by chance", f"{chance:.1%}")
        table.add_row("    nouns asked", f"{game.asked:,}")
    for name, seconds in report["seconds"].items():
        table.add_row(f"seconds to {name}", f"{seconds:.1f}")
    return table
