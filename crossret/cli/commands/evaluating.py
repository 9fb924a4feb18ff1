"""The command that measures retrieval: `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import DataDirectory, Device, Threads, in_a_directory, load_for, option, use_threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from crossret.data import PrecomputedDataset
    from crossret.evaluation import ScoreMatrix
    from crossret.evaluation.protocols import RetrievalProtocol


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            exists=True, help="Output directory of `train`, a model's own, or .npy scores (images, captions)."
        ),
    ],
    data: DataDirectory,
    split: Annotated[str, option("Which SPLIT_ims.npy and SPLIT_caps.txt.")] = "test",
    ensemble: Annotated[
        list[Path] | None,
        option("Average the scores with this one's, given as RUN is; may be repeated.", exists=True),
    ] = None,
    five_fold: Annotated[bool, option("Means over five folds, as MS-COCO's 1K results.", "--five-fold")] = False,
    protocol: Annotated[
        Literal["eccv", "fico_itr"] | None, option("Also measure as ECCV Caption and CxC do, or FiCo-ITR.")
    ] = None,
    scores: Annotated[
        Path | None,
        option(
            "Also write the scores (images, captions) float32, .npy, to this file.",
            dir_okay=False,
            callback=in_a_directory,
        ),
    ] = None,
    json: Annotated[
        Path | None, option("Also write the figures to this file.", dir_okay=False, callback=in_a_directory)
    ] = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Measure a trained model's retrieval, or an ensemble's.

    Prints recall at 1, 5 and 10, median and mean rank, both ways. An ensemble's
    scores are the means of its members', models of any kind or files of scores.

    --protocol eccv is for MS-COCO's 5K test, with SPLIT_ids.txt and
    SPLIT_caption_ids.txt as import-captions writes them, and adds PMRP where DATA
    has its pm_*.json. fico_itr adds mAP over categories where DATA has
    SPLIT_labels.npy: (images,) integers, or (images, categories) of 0 and 1. Both
    need pip install 'crossret[protocols]'.

    \b
    Examples:
      crossret evaluate runs/scenes scenes
      crossret evaluate runs/coco data/coco_precomp --split testall --five-fold --json coco.json
      crossret evaluate runs/t2i_avg data/f30k_precomp --ensemble runs/i2t_lse --scores both.npy
      crossret evaluate both.npy data/f30k_precomp --ensemble scores_of_another.npy
      crossret evaluate runs/coco data/coco --protocol eccv
    """
    from rich.console import Console

    from crossret import evaluation
    from crossret.data import PrecomputedDataset
    from crossret.files.json import write_json
    from crossret.terminal import figures_table, retrieval_table

    use_threads(threads)
    given = [run, *(ensemble or [])]
    if all(member.is_file() for member in given):
        refuse({"device": device}, "is for models, not for files of scores")
    _check_outputs(scores, json, [*data.iterdir(), *_files_of(given)])
    images = PrecomputedDataset(data, split)
    if five_fold and images.n_images % 5:
        raise ValueError(f"--five-fold: the {images.n_images} images of {split} cannot be divided into 5 equal folds")
    measured_by = None if protocol is None else _protocol(protocol, data, split, images)
    members = []
    for number, member in enumerate(given, start=1):
        which = f" {number} of {len(given)}" if ensemble else ""
        members.append(_member(member, images, device, which))
    with _written_to(scores, (images.n_images, images.n_captions)) as write:
        matrix = evaluation.average_scores(members)
        write(matrix)
    measure = evaluation.five_fold if five_fold else evaluation.retrieval_metrics
    metrics = measure(matrix, images.image_of_caption)
    others = {} if measured_by is None else {f"{protocol}": measured_by.figures(matrix)}
    if json is not None:
        what = {"members": [str(member) for member in given], "split": split, "five_fold": five_fold}
        write_json(json, {**what, "images": images.n_images, **metrics.as_dict(), **others})
    title = f"{split}: {images.n_images:,} images, {images.n_captions:,} captions"
    if ensemble:
        title += f", ensemble of {len(given)}"
    if five_fold:
        title += ", means of five folds"
    console = Console(emoji=False)
    console.print(retrieval_table(metrics, title))
    for name, figures in others.items():
        console.print(figures_table(figures, f"{name}: in percent, but for ranks"))


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
            "crossret import-captions writes of Karpathy's dataset_coco.json"
        )
    plausible = data if all((data / file).exists() for file in PLAUSIBLE) else None
    return EccvCaption(images.ids, images.caption_ids, plausible)


def _member(path: Path, images: PrecomputedDataset, device: str | None, which: str) -> ScoreMatrix:
    """The scores of a file, or those that a model will give, which is loaded now so that a wrong one is told now."""
    from crossret import evaluation
    from crossret.terminal import progress_bar

    if not path.is_dir():
        return evaluation.StoredScores.of_file(path, (images.n_images, images.n_captions))
    model, corpus = load_for(path, images, device)

    def of_model() -> NDArray[np.float32]:
        with warnings_as_lines(), progress_bar(f"encoding{which}") as progress:
            encoded = evaluation.encode_dataset(model, corpus, progress=progress)
        with progress_bar(f"scoring{which}") as progress:
            return evaluation.score_matrix(model, *encoded, corpus=corpus, progress=progress)

    return of_model


@contextmanager
def _written_to(output: Path | None, shape: tuple[int, int]) -> Iterator[Callable[[NDArray[np.float32]], None]]:
    """Where --scores says to write a matrix, if anywhere; its room is there before anything is computed."""
    from crossret.files.arrays import write_blocks

    if output is None:
        yield lambda matrix: None
        return
    with write_blocks(output, shape) as write:
        yield lambda matrix: write(slice(None), slice(None), matrix)


def _check_outputs(scores: Path | None, json: Path | None, inputs: list[Path]) -> None:
    from crossret.files.features import check_output

    for output in (scores, json):
        if output is not None:
            check_output(output, *inputs)
    if scores is not None and json is not None and scores.resolve() == json.resolve():
        raise ValueError(f"{json}: --scores and --json name the same file")


def _files_of(members: list[Path]) -> Iterator[Path]:
    for member in members:
        yield from [member] if member.is_file() else member.rglob("*")
