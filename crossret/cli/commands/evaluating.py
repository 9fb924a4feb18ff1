"""The command that measures retrieval: `evaluate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import (
    DataDirectory,
    Device,
    Split,
    Threads,
    file_to_write,
    load_for,
    load_trained,
    option,
    use_threads,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from crossret.data import PrecomputedDataset
    from crossret.data.corpus import PrecomputedCorpus
    from crossret.evaluation.protocols import RetrievalProtocol
    from crossret.explain.pointing import PointingGame
    from crossret.models import Matcher
    from crossret.models.encoded import Encoded


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            exists=True, help="Output directory of `train`, a model's own, or .npy scores (images, captions)."
        ),
    ],
    data: DataDirectory,
    split: Split = "test",
    ensemble: Annotated[
        list[Path] | None,
        option("Average the scores with this one's, given as RUN is; may be repeated.", exists=True),
    ] = None,
    folds: Annotated[
        int | None, option("Means over so many folds of the images, each with its captions.", min=1)
    ] = None,
    five_fold: Annotated[bool, option("Means over five folds, as MS-COCO's 1K results.", "--five-fold")] = False,
    protocol: Annotated[
        Literal["eccv", "fico_itr"] | None, option("Also measure as ECCV Caption and CxC do, or FiCo-ITR.")
    ] = None,
    pointing_game: Annotated[
        bool,
        option("Of rendered scenes and one model, also play the pointing game, as explain does.", "--pointing-game"),
    ] = False,
    scores: Annotated[
        Path | None, file_to_write("Also write the scores (images, captions) float32, .npy, to this file.")
    ] = None,
    output: Annotated[Path | None, file_to_write("Also write the figures to this file, as JSON.")] = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Measure a trained model's retrieval, or an ensemble's.

    Prints recall at 1, 5 and 10, median and mean rank, both ways. An ensemble's
    scores are the means of its members', models of any kind or files of scores.
    The figures that --output writes have seconds, pairs/s, memory and machine, too.

    --protocol eccv is for MS-COCO's 5K test, with SPLIT_ids.txt and
    SPLIT_caption_ids.txt as import-captions --protocol published writes them, and
    adds PMRP where DATA has its pm_*.json. fico_itr adds mAP over categories where DATA has
    SPLIT_labels.npy: (images,) integers, or (images, categories) of 0 and 1. Both
    need pip install 'crossret[protocols]'.

    \b
    Examples:
      crossret evaluate runs/scenes scenes
      crossret evaluate runs/coco data/coco_precomp --split testall --five-fold --output coco.json
      crossret evaluate runs/t2i_avg data/f30k_precomp --ensemble runs/i2t_lse --scores both.npy
      crossret evaluate both.npy data/f30k_precomp --ensemble scores_of_another.npy
      crossret evaluate runs/coco data/coco --protocol eccv
    """
    from rich.console import Console

    from crossret import evaluation, system
    from crossret.data import PrecomputedDataset
    from crossret.data.owners import PUBLISHED_FOLDS
    from crossret.files.json import write_json
    from crossret.machine import describe_machine
    from crossret.models.checkpoints import model_directory, reads_pictures
    from crossret.terminal import figures_table, pointing_table, retrieval_table

    use_threads(threads)
    given = [run, *(ensemble or [])]
    if all(member.is_file() for member in given):
        refuse({"device": device}, "is for models, not for files of scores")
    _check_outputs(scores, output, [*data.iterdir(), *_files_of(given)])
    through = next((member for member in given if member.is_dir() and reads_pictures(model_directory(member))), None)
    trained = None if through is None else load_trained(through, data, split, device)
    images = PrecomputedDataset(data, split) if trained is None else trained[1].data
    if five_fold:
        refuse({"folds": folds}, "cannot go with --five-fold, which is five folds")
        folds = PUBLISHED_FOLDS
    if folds is not None and images.n_images % folds:
        asked = "--five-fold" if five_fold else "--folds"
        raise ValueError(f"{asked}: the {images.n_images} images of {split} cannot be divided into {folds} equal folds")
    measured_by = None if protocol is None else _protocol(protocol, data, split, images)
    if pointing_game and (ensemble or run.is_file()):
        raise ValueError("--pointing-game is of one model, not of scores or an ensemble")
    members, models = [], []
    for number, member in enumerate(given, start=1):
        which = f" {number} of {len(given)}" if ensemble else ""
        if member.is_dir():
            if trained is None:
                own = load_for(member, images, device)
            else:
                own = trained if member is through else load_trained(member, data, split, device)
            if own[1].data.captions != images.captions:
                raise ValueError(f"{member}: reads other images or captions of {split} than {through}")
            models.append(_Model(member, *own, which, (data, split) if pointing_game else None))
            members.append(models[-1].scores)
        else:
            members.append(evaluation.StoredScores.of_file(member, (images.n_images, images.n_captions)))
    with _written_to(scores, (images.n_images, images.n_captions)) as write:
        matrix = evaluation.average_scores(members)
        write(matrix)
    measure = evaluation.retrieval_metrics if folds is None else partial(evaluation.five_fold, folds=folds)
    metrics = measure(matrix, images.image_of_caption)
    others = {} if measured_by is None else {f"{protocol}": measured_by.figures(matrix)}
    if output is not None:
        what = {
            "members": [str(member) for member in given],
            "split": split,
            "folds": folds or 1,
        }
        sizes = {"images": images.n_images, "captions": images.n_captions}
        cost = {"models": [model.figures for model in models], "peak_mebibytes": system.peak_mebibytes()}
        write_json(output, {**what, **sizes, **metrics.as_dict(), **others, **cost, "machine": describe_machine()})
    title = f"{split}: {images.n_images:,} images, {images.n_captions:,} captions"
    if ensemble:
        title += f", ensemble of {len(given)}"
    if folds is not None:
        title += f", means of {folds} folds"
    console = Console(emoji=False)
    console.print(retrieval_table(metrics, title))
    for name, figures in others.items():
        console.print(figures_table(figures, f"{name}: in percent, but for ranks"))
    if pointing_game:
        console.print(pointing_table(models[0].games, f"Pointing game, {split}"))


def _protocol(name: str, data: Path, split: str, images: PrecomputedDataset) -> RetrievalProtocol:
    """A protocol with what it needs of the data beside scores."""
    from crossret.data.precomputed import caption_ids_path, ids_path, split_path
    from crossret.evaluation.protocols import PLAUSIBLE, EccvCaption, FicoItr
    from crossret.files.arrays import map_array
    from crossret.files.features import LENGTH_DTYPES

    if name == "fico_itr":
        labels = split_path(data, split, "_labels.npy")
        stored = map_array(labels, ndim=(1, 2), dtypes=["|b1", *LENGTH_DTYPES]) if labels.exists() else None
        return FicoItr(images.image_of_caption, stored)
    missing = ids_path if images.ids is None else caption_ids_path
    if images.ids is None or images.caption_ids is None:
        raise ValueError(
            f"{missing(data, split)}: no such file; --protocol eccv needs MS-COCO's ids of images and captions, which "
            "crossret import-captions --protocol published writes of Karpathy's dataset_coco.json"
        )
    plausible = data if all((data / file).exists() for file in PLAUSIBLE) else None
    return EccvCaption(images.ids, images.caption_ids, plausible)


class _Model:
    """A member that is a model, which is loaded now so that a wrong one is told now.

    Attributes:
        figures: facts on it, once it has scored its times, and those of ``explain`` on the pointing game.
        games: of the pointing game, if that is to be played.
    """

    def __init__(
        self, path: Path, model: Matcher, corpus: PrecomputedCorpus, which: str, scenes: tuple[Path, str] | None
    ) -> None:
        self._model, self._corpus = model, corpus
        self._which, self._scenes = which, scenes
        numbers = sum(parameter.numel() for parameter in self._model.parameters())
        self.figures: dict[str, Any] = {"run": str(path), "model": self._model.kind, "parameters": numbers}
        self.games: list[PointingGame] = []

    def scores(self) -> NDArray[np.float32]:
        """Scores of all images with all captions: a ``ScoreMatrix``."""
        from crossret import evaluation
        from crossret.terminal import progress_bar

        model, corpus = self._model, self._corpus
        began = time.perf_counter()
        with warnings_as_lines(), progress_bar(f"encoding{self._which}") as progress:
            images, captions = evaluation.encode_dataset(model, corpus, progress=progress)
        encoded = time.perf_counter() - began
        evaluation.score_matrix(model, images[:2], captions[:2])  # a process's first call takes longer
        began = time.perf_counter()
        with progress_bar(f"scoring{self._which}") as progress:
            matrix = evaluation.score_matrix(model, images, captions, corpus=corpus, progress=progress)
        seconds = time.perf_counter() - began
        self.figures |= {"encoding_seconds": encoded, "scoring_seconds": seconds}
        self.figures["pairs_per_second"] = matrix.size / seconds
        if self._scenes is not None:
            self._play(*self._scenes, images, captions)
        return matrix

    def _play(self, scenes: Path, split: str, images: Encoded, captions: Encoded) -> None:
        from crossret.explain.grounding import GroundedSplit, boxes_of_tokens, play_pointing_game

        model, corpus = self._model, self._corpus
        boxes = boxes_of_tokens(model, corpus)
        grounded = GroundedSplit.load(scenes, split, corpus, images, captions, model.config, boxes=boxes)
        self.games = play_pointing_game(self._model, grounded)
        self.figures["pointing_game"] = [asdict(game) for game in self.games]


@contextmanager
def _written_to(output: Path | None, shape: tuple[int, int]) -> Iterator[Callable[[NDArray[np.float32]], None]]:
    """Where --scores says to write a matrix, if anywhere; its room is there before anything is computed."""
    from crossret.files.arrays import write_blocks

    if output is None:
        yield lambda matrix: None
        return
    with write_blocks(output, shape) as write:
        yield lambda matrix: write(slice(None), slice(None), matrix)


def _check_outputs(scores: Path | None, output: Path | None, inputs: list[Path]) -> None:
    from crossret.files.features import check_output

    for path in (scores, output):
        if path is not None:
            check_output(path, *inputs)
    if scores is not None and output is not None and scores.resolve() == output.resolve():
        raise ValueError(f"{output}: --scores and --output name the same file")


def _files_of(members: list[Path]) -> Iterator[Path]:
    for member in members:
        yield from [member] if member.is_file() else member.rglob("*")
