"""The commands about a model: `train` and `evaluate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossret.cli.errors import Interrupted, warnings_as_lines
from crossret.cli.options import (
    DataDirectory,
    Pooling,
    RawFeatureNorm,
    Seed,
    Threads,
    given,
    in_a_directory,
    load_trained,
    option,
    refuse_unused,
    use_threads,
)
from crossret.presets import PRESET_OF_CROSS_ATTENTION, SCAN_PRESETS, SCHEDULES

if TYPE_CHECKING:
    from crossret.models.scan import ScanConfig

CrossAttention = Literal["t2i", "i2t", "sum_max_t2i", "sum_max_i2t", "ensemble"]


def _scheduled(field: str) -> str:
    return "by default " + ", ".join(f"{schedule[field]:g} ({name})" for name, schedule in SCHEDULES.items())


def train(
    data: DataDirectory,
    output: Annotated[
        Path, option("Directory for the checkpoint, the log and best/, the best model.", file_okay=False)
    ],
    preset: Annotated[
        str | None,
        option(
            f"The paper's setting to start from: {', '.join(SCAN_PRESETS)}. By default that of --cross-attention: "
            f"{', '.join(PRESET_OF_CROSS_ATTENTION.values())}. Two directions are one model with shared encoders; the "
            "paper's ensembles are two models trained apart.",
            metavar="<name>",
        ),
    ] = None,
    cross_attention: Annotated[CrossAttention | None, option("Who attends to whom; by default t2i.")] = None,
    raw_feature_norm: Annotated[RawFeatureNorm | None, option("Normalisation of similarities.")] = None,
    clip_slope: Annotated[float | None, option("Slope of the clip below zero; the paper's is 0.")] = None,
    lambda_softmax: Annotated[float | None, option("Inverse temperature of the attention.")] = None,
    pooling: Annotated[Pooling | None, option("How relevances become a score.")] = None,
    lambda_lse: Annotated[float | None, option("Sharpness of LSE pooling.")] = None,
    i2t_lambda_softmax: Annotated[float | None, option("As --lambda-softmax, of i2t in an ensemble.")] = None,
    i2t_pooling: Annotated[Pooling | None, option("As --pooling, of i2t in an ensemble.")] = None,
    i2t_lambda_lse: Annotated[float | None, option("As --lambda-lse, of i2t in an ensemble.")] = None,
    margin: Annotated[float | None, option("Margin of the triplet loss.")] = None,
    negatives: Annotated[Literal["hardest", "sum"] | None, option("Negatives of the triplet loss.")] = None,
    embed_dim: Annotated[int | None, option("Dimensions in which regions and words meet.")] = None,
    word_dim: Annotated[int | None, option("Dimensions of a word's embedding.")] = None,
    region_count: Annotated[int | None, option("Use an image's first regions only.")] = None,
    bidirectional: Annotated[bool | None, option("Read captions both ways, or forward only.")] = None,
    image_norm: Annotated[bool | None, option("L2-normalise regions.")] = None,
    text_norm: Annotated[bool | None, option("L2-normalise words.")] = None,
    epochs: Annotated[int | None, option(f"Passes over the training captions; {_scheduled('epochs')}.")] = None,
    batch_size: Annotated[int, option("Captions a step.")] = 128,
    learning_rate: Annotated[float | None, option(f"Adam's; {_scheduled('learning_rate')}.")] = None,
    decay_epoch: Annotated[
        int | None, option(f"Epochs before the rate is divided by 10; {_scheduled('decay_epoch')}.")
    ] = None,
    seed: Seed = 0,
    resume: Annotated[bool, option("Go on from the checkpoint in the output directory.", "--resume")] = False,
    threads: Threads = None,
) -> None:
    """Train SCAN.

    Learns from the train split; the dev split decides which epoch was best.
    Options left out take the preset's value, the schedule's included. Ctrl-C leaves
    a checkpoint: the same command with --resume goes on as if nothing had happened,
    bit for bit with the same number of threads and the same CPU instructions.

    \b
    Examples:
      crossret train data/f30k_precomp --output runs/f30k
      crossret train data/coco_precomp --output runs/coco --preset coco_i2t_lse
      crossret train scenes --output run --embed-dim 256 --negatives sum --epochs 8 --decay-epoch 7 --learning-rate 1e-3
      crossret train data/f30k_precomp --output runs/f30k --resume
    """
    import torch

    from crossret.corpus import PrecomputedCorpus
    from crossret.data import PrecomputedDataset, Vocabulary
    from crossret.models.scan import Scan, ScanConfig
    from crossret.training import CHECKPOINT, TrainingConfig
    from crossret.training import train as run_training

    chosen = {
        "cross_attention": cross_attention,
        "raw_feature_norm": raw_feature_norm,
        "clip_slope": clip_slope,
        "lambda_softmax": lambda_softmax,
        "pooling": pooling,
        "lambda_lse": lambda_lse,
        "i2t_lambda_softmax": i2t_lambda_softmax,
        "i2t_pooling": i2t_pooling,
        "i2t_lambda_lse": i2t_lambda_lse,
        "margin": margin,
        "negatives": negatives,
        "embed_dim": embed_dim,
        "word_dim": word_dim,
        "region_count": region_count,
        "bidirectional": bidirectional,
        "image_norm": image_norm,
        "text_norm": text_norm,
    }
    preset = preset or PRESET_OF_CROSS_ATTENTION[cross_attention or "t2i"]
    use_threads(threads)
    training_data, dev_data = PrecomputedDataset(data, "train"), PrecomputedDataset(data, "dev")
    vocabulary = Vocabulary.build(training_data.captions)
    config = ScanConfig.preset(
        preset, image_dim=training_data.image_dim, vocabulary_size=len(vocabulary), **given(chosen)
    )
    refuse_unused(config, chosen)
    schedule = TrainingConfig.preset(
        preset.split("_")[0],
        batch_size=batch_size,
        seed=seed,
        **given({"epochs": epochs, "learning_rate": learning_rate, "decay_epoch": decay_epoch}),
    )
    _check_memory(config)
    torch.manual_seed(seed)
    try:
        with warnings_as_lines():
            result = run_training(
                Scan(config),
                PrecomputedCorpus(training_data, vocabulary),
                PrecomputedCorpus(dev_data, vocabulary),
                schedule,
                output,
                resume=resume,
            )
    except KeyboardInterrupt:
        left = (output / CHECKPOINT).exists()
        hint = "to go on, repeat the command with --resume" if left else "there is no checkpoint yet"
        raise Interrupted(hint) from None
    typer.echo(f"Best epoch {result.best_epoch} of {result.epochs_run}: rsum {result.best_rsum:.1f}; {output / 'best'}")


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
    from crossret.report import progress_bar, retrieval_table, write_json

    use_threads(threads)
    model, corpus = load_trained(run, data, split)
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


def _check_memory(config: ScanConfig) -> None:
    """Raise a ValueError where the weights, their gradients and Adam's two averages exceed this machine's memory."""
    import torch

    from crossret.models.scan import Scan

    with torch.device("meta"):
        numbers = sum(parameter.numel() for parameter in Scan(config).parameters())
    needed, there = 4 * 4 * numbers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"embed_dim {config.embed_dim}, word_dim {config.word_dim} and {config.vocabulary_size} words make a model "
            f"that takes {needed / 2**30:,.0f} GiB to train; this machine has {there / 2**30:,.0f} GiB"
        )
