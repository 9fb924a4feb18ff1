"""The command that learns: `train`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crossret.cli.errors import Interrupted, warnings_as_lines
from crossret.cli.model_options import HyperParameters, chosen_of
from crossret.cli.options import (
    DataDirectory,
    Seed,
    Threads,
    given,
    option,
    refuse_unused,
    use_threads,
)
from crossret.cli.signatures import with_fields
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.hyperparameters.scan import PRESET_OF_CROSS_ATTENTION

if TYPE_CHECKING:
    from crossret.hyperparameters import ModelConfig


@with_fields("hyperparameters", HyperParameters)
def train(
    data: DataDirectory,
    output: Annotated[
        Path, option("Directory for the checkpoint, the log and best/, the best model.", file_okay=False)
    ],
    model: Annotated[str, option("Which model.", metavar=f"[{'|'.join(MODEL_CONFIGS)}]")] = "scan",
    preset: Annotated[
        str | None,
        option(
            "The paper's setting to start from, as `crossret presets` lists them. By default the model's first; "
            f"scan's is that of --cross-attention: {', '.join(PRESET_OF_CROSS_ATTENTION.values())}. scan's two "
            "directions are one model with shared encoders; the paper's ensembles are two models trained apart.",
            metavar="<name>",
        ),
    ] = None,
    *,
    hyperparameters: Any,
    word_vectors: Annotated[
        Path | None,
        option(
            "Start the word embeddings from this file: GloVe's or word2vec's text, or gensim's KeyedVectors. --resume "
            "ignores it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    epochs: Annotated[int | None, option("Passes over the training captions.")] = None,
    batch_size: Annotated[int | None, option("Captions a step.")] = None,
    optimizer: Annotated[Literal["adam", "adadelta"] | None, option("What takes the steps.")] = None,
    learning_rate: Annotated[float | None, option("The optimizer's.")] = None,
    decay_epoch: Annotated[
        list[int] | None,
        option("Epochs before the rate is divided by 10; may be repeated, ascending.", metavar="<int>"),
    ] = None,
    weight_decay: Annotated[float | None, option("Share of every weight that is added to its gradient.")] = None,
    gradient_norm: Annotated[float | None, option("Scale larger gradients down to this norm.")] = None,
    seed: Seed = 0,
    resume: Annotated[bool, option("Go on from the checkpoint in the output directory.", "--resume")] = False,
    threads: Threads = None,
) -> None:
    """Train a model.

    Learns from the train split; the dev split decides which epoch was best.
    Options left out take the preset's value, the schedule's included. Options with
    models in brackets are for these alone. Ctrl-C leaves a checkpoint: the same
    command with --resume goes on as if nothing had happened, bit for bit with the
    same number of threads and the same CPU instructions.

    \b
    Examples:
      crossret train data/f30k_precomp --output runs/scan
      crossret train data/coco_precomp --output runs/i2t --preset coco_i2t_lse --negatives sum
      crossret train data/f30k_precomp --output runs/sman --model sman --word-vectors glove.6B.300d.txt --word-dim 300
      crossret train scenes --output runs/han --model han --preset scenes --clusters 16
      crossret train data/coco_precomp --output runs/oan --model oan --preset coco --resume
    """
    import torch

    from crossret.data import PrecomputedDataset, Vocabulary
    from crossret.data.corpus import PrecomputedCorpus
    from crossret.data.word_vectors import start_from_word_vectors
    from crossret.models import MODELS
    from crossret.training import CHECKPOINT
    from crossret.training import train as run_training

    if model not in MODEL_CONFIGS:
        raise ValueError(f"--model must be one of {', '.join(MODEL_CONFIGS)}, not {model!r}")
    config_class = MODEL_CONFIGS[model]
    chosen = chosen_of(model, hyperparameters)
    if preset is None:
        first = next(iter(config_class.presets))
        preset = PRESET_OF_CROSS_ATTENTION[chosen.get("cross_attention", "t2i")] if model == "scan" else first
    schedule_options = {
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "decay_epochs": decay_epoch or None,
        "weight_decay": weight_decay,
        "gradient_norm": gradient_norm,
    }
    schedule = config_class.schedule(preset, seed=seed, **given(schedule_options))
    use_threads(threads)
    training_data, dev_data = PrecomputedDataset(data, "train"), PrecomputedDataset(data, "dev")
    vocabulary = Vocabulary.build(training_data.captions)
    config = config_class.preset(preset, image_dim=training_data.image_dim, vocabulary_size=len(vocabulary), **chosen)
    refuse_unused(config, vars(hyperparameters))
    _check_memory(config)
    torch.manual_seed(seed)
    network = MODELS[model][1](config)
    if word_vectors is not None and not resume:
        found = start_from_word_vectors(network.text.embed, vocabulary, word_vectors)
        typer.echo(f"{word_vectors}: vectors of {found:,} of the {len(vocabulary):,} words")
    try:
        with warnings_as_lines():
            result = run_training(
                network,
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


def _check_memory(config: ModelConfig) -> None:
    """Raise a ValueError where weights, gradients and an optimizer's two averages exceed this machine's memory."""
    import torch

    from crossret.models import MODELS

    with torch.device("meta"):
        numbers = sum(parameter.numel() for parameter in MODELS[config.kind][1](config).parameters())
    needed, there = 4 * 4 * numbers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        sizes = [field.name for field in dataclasses.fields(config) if field.metadata.get("size")]
        raise ValueError(
            f"{', '.join(f'{name} {getattr(config, name)}' for name in sizes)} make a model that takes "
            f"{needed / 2**30:,.0f} GiB to train; this machine has {there / 2**30:,.0f} GiB"
        )
