"""The command that measures retrieval: `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.options import DataDirectory, Device, Threads, in_a_directory, load_trained, option, use_threads


def evaluate(
    run: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Output directory of `train`, or a model's own.")
    ],
    data: DataDirectory,
    split: Annotated[str, option("Which SPLIT_ims.npy and SPLIT_caps.txt.")] = "test",
    five_fold: Annotated[bool, option("Means over five folds, as MS-COCO's 1K results.", "--five-fold")] = False,
    json: Annotated[
        Path | None, option("Also write the figures to this file.", dir_okay=False, callback=in_a_directory)
    ] = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Measure a trained model's retrieval.

    Prints recall at 1, 5 and 10, median and mean rank, both ways.

    \b
    Examples:
      crossret evaluate runs/scenes scenes
      crossret evaluate runs/coco data/coco_precomp --split testall --five-fold --json coco.json
    """
    from rich.console import Console

    from crossret import evaluation
    from crossret.files.json import write_json
    from crossret.terminal import progress_bar, retrieval_table

    use_threads(threads)
    model, corpus = load_trained(run, data, split, device)
    if five_fold and corpus.n_images % 5:
        raise ValueError(f"--five-fold: the {corpus.n_images} images of {split} cannot be divided into 5 equal folds")
    with progress_bar("encoding") as progress:
        images, captions = evaluation.encode_dataset(model, corpus, progress=progress)
    with progress_bar("scoring") as progress:
        scores = evaluation.score_matrix(model, images, captions, progress=progress)
    measure = evaluation.five_fold if five_fold else evaluation.retrieval_metrics
    metrics = measure(scores, corpus.image_of_caption)
    if json is not None:
        write_json(json, {"split": split, "five_fold": five_fold, "images": corpus.n_images, **metrics.as_dict()})
    folds = ", means of five folds" if five_fold else ""
    Console(emoji=False).print(
        retrieval_table(metrics, f"{split}: {corpus.n_images:,} images, {corpus.n_captions:,} captions{folds}")
    )
