"""The main job on real input: render scenes, train SCAN with the fused kernels, evaluate it, show where it looks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from crossret.checkpoints import load_model
from crossret.corpus import PrecomputedCorpus
from crossret.data import PrecomputedDataset, Vocabulary, render_scenes
from crossret.encoded import Encoded
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.grounding import GroundedSplit, draw_caption, play_pointing_game
from crossret.json_files import parse_json
from crossret.models.scan import Scan, ScanConfig
from crossret.pictures import draw_training
from crossret.report import describe_machine, progress_bar, read_json_lines, retrieval_table, write_json
from crossret.scorers import CrossAttentionScorer
from crossret.training import BEST, CHECKPOINT, LOG, TrainingConfig, train
from crossret_kernels import scan_scores
from crossret_kernels.backends import select_backend

# SCAN's text-image attention at a size that two cores train in two minutes. All negatives of a batch (Eq. 11) teach it
# from the first step on; the hardest alone (Eq. 12) leave the loss at its starting point for longer than a demo lasts.
PRESET = "f30k_t2i_avg"
SETTINGS = {"embed_dim": 256, "word_dim": 64, "negatives": "sum"}
LEARNING_RATE = 1e-3

PICTURES = 4

# Written before anything else: a directory with this file is an earlier demo's, and its contents may be replaced.
MARK = "crossret-demo.json"
_MARK_CONTENTS = {"format": "crossret demo 1"}
# The einsum reference materialises images * captions * words * dimensions numbers: a subset of the test is timed.
TIMED_IMAGES, TIMED_CAPTIONS, REPEATS = 64, 128, 3


def run_demo(output: Path, *, images: int, epochs: int, seed: int, console: Console) -> dict[str, Any]:
    """Do the whole job in ``output`` and return what ``output/report.json`` says.

    Args:
        output: created if absent. Gets scenes/, model/, report.json, training.png, attention/*.png and
            crossret-demo.json, which marks it as a demo's: what an earlier demo left there is replaced.
        images: training images; an eighth as many are rendered for development and a quarter for the test.
        epochs: passes over the training captions.
        seed: of the scenes and of the training.
        console: where steps and tables are printed.

    Raises:
        FileExistsError: ``output`` holds anything that is not an earlier demo's.
        OSError: ``output`` cannot be written.
    """
    _claim(output)
    steps = _Steps(console)
    scenes, run = output / "scenes", output / "model"
    counts = {"train": images, "dev": images // 8, "test": images // 4}
    with steps.step("render", f"Rendering {sum(counts.values()):,} scenes"), progress_bar("rendering") as progress:
        render_scenes(
            scenes, train=counts["train"], dev=counts["dev"], test=counts["test"], seed=seed, progress=progress
        )
    with steps.step("train", f"Training SCAN for {epochs} epochs"):
        model, vocabulary = _train(scenes, run, epochs, seed)
    with steps.step("evaluate", f"Scoring {counts['test']:,} test images with {5 * counts['test']:,} captions"):
        corpus = PrecomputedCorpus(PrecomputedDataset(scenes, "test"), vocabulary)
        encoded = encode_dataset(model, corpus)
        started = time.perf_counter()
        scores = score_matrix(model, *encoded)
        pairs_per_second = scores.size / (time.perf_counter() - started)
        metrics = retrieval_metrics(scores, corpus.image_of_caption)
    with steps.step("compare", "Timing the einsum reference on a part of them"):
        comparison = _time_backends(model, *encoded)
    with steps.step("explain", "Asking the words where they look"):
        scorer = CrossAttentionScorer(**model.config.attention_options("t2i"))
        test = GroundedSplit.load(scenes, "test", *encoded, corpus.image_of_caption)
        game = play_pointing_game(scorer, test)
        pictures = _draw(scorer, test, output / "attention")
        draw_training(output / "training.png", read_json_lines(run / LOG))
    report = {
        "crossret": metadata.version("crossret"),
        "machine": describe_machine(),
        "images": counts,
        "seed": seed,
        "epochs": epochs,
        "model": asdict(model.config),
        "retrieval": metrics.as_dict(),
        "scoring": {"pairs": scores.size, "pairs_per_second": pairs_per_second, **comparison},
        "pointing_game": asdict(game),
        "pictures": pictures,
        "seconds": {name: round(value, 2) for name, value in steps.seconds.items()},
    }
    write_json(output / "report.json", report)
    console.print(retrieval_table(metrics, f"Retrieval on {counts['test']:,} test images"))
    console.print(_figures_table(report))
    console.print(
        escape(f"Pictures and figures are in {output}: attention/, training.png, report.json"), soft_wrap=True
    )
    return report


def _claim(output: Path) -> None:
    """Mark a new or empty directory as a demo's; refuse any other but an earlier demo's.

    Hidden files do not count: a mark whose writer was killed leaves one.
    """
    output.mkdir(parents=True, exist_ok=True)
    mark = output / MARK
    if mark.is_file():
        if parse_json(mark.read_bytes(), mark) != _MARK_CONTENTS:
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


def _train(scenes: Path, run: Path, epochs: int, seed: int) -> tuple[Scan, Vocabulary]:
    """The model that was best on the development set."""
    (run / CHECKPOINT).unlink(missing_ok=True)  # an earlier demo's: this one starts anew
    data = PrecomputedDataset(scenes, "train")
    vocabulary = Vocabulary.build(data.captions)
    torch.manual_seed(seed)
    config = ScanConfig.preset(PRESET, image_dim=data.image_dim, vocabulary_size=len(vocabulary), **SETTINGS)
    schedule = TrainingConfig(
        epochs=epochs, decay_epoch=max(1, epochs - 1), learning_rate=LEARNING_RATE, seed=seed, checkpoint_every=10**6
    )
    train(
        Scan(config),
        PrecomputedCorpus(data, vocabulary),
        PrecomputedCorpus(PrecomputedDataset(scenes, "dev"), vocabulary),
        schedule,
        run,
    )
    return load_model(run / BEST)


def _time_backends(model: Scan, images: Encoded, captions: Encoded) -> dict[str, Any]:
    """Median seconds of the fused kernels and of the einsum reference on one part of the test, and their ratio."""
    images, captions = images[:TIMED_IMAGES], captions[:TIMED_CAPTIONS]
    options = model.config.attention_options("t2i")

    def median_seconds(backend: str | None) -> float:
        seconds = []
        for _ in range(1 + REPEATS):  # the first warms up
            started = time.perf_counter()
            scan_scores(
                images.sequences, captions.sequences, images.lengths, captions.lengths, **options, backend=backend
            )
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])

    with torch.inference_mode():
        fused, reference = median_seconds(None), median_seconds("reference")
    return {
        "backend": select_backend(None, images.sequences.device, images.sequences.dtype),
        "compared_pairs": len(images) * len(captions),
        "fused_seconds": fused,
        "reference_seconds": reference,
        "speed_up": reference / fused,
    }


def _draw(scorer: CrossAttentionScorer, test: GroundedSplit, directory: Path) -> list[str]:
    """Pictures of evenly spaced test images, each with the caption that names most objects: not picked by success."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("[0-9]*.png"):
        path.unlink()
    names = []
    for image in np.linspace(0, len(test.images) - 1, PICTURES).astype(int):
        own = np.flatnonzero(test.image_of_caption == image)
        caption = max(own.tolist(), key=lambda index: len(test.grounding[index].objects))
        names.append(f"{caption:05d}.png")
        draw_caption(directory / names[-1], scorer, test, caption)
    return names


def _figures_table(report: dict[str, Any]) -> Table:
    scoring, game, machine = report["scoring"], report["pointing_game"], report["machine"]
    table = Table(title=escape(f"{machine['cpu']}, {machine['threads']} threads"), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row(
        f"pairs scored a second (whole test set, backend {scoring['backend']})", f"{scoring['pairs_per_second']:,.0f}"
    )
    table.add_row(
        f"speed-up over the einsum reference ({scoring['compared_pairs']:,} pairs)", f"{scoring['speed_up']:.1f} x"
    )
    for rule, prefix in (("overlaps the object it names", ""), ("has its centre in that object's box", "centre_")):
        table.add_row(f"pointing game: a noun's strongest region {rule}", f"{game[prefix + 'accuracy']:.1%}")
        table.add_row("    by chance", f"{game[prefix + 'chance']:.1%}")
    table.add_row("    nouns asked", f"{game['nouns']:,}")
    for name, seconds in report["seconds"].items():
        table.add_row(f"seconds to {name}", f"{seconds:.1f}")
    return table
