"""What a training is about to do, in a few facts."""

from __future__ import annotations

from collections.abc import Mapping

from crossret.data.corpus import Corpus
from crossret.data.vocabulary import Vocabulary
from crossret.hyperparameters import TrainingConfig
from crossret.models.protocol import Matcher
from crossret.training.state import Machine, Position


def facts_of(
    model: Matcher,
    train_data: Corpus,
    dev_data: Corpus,
    config: TrainingConfig,
    position: Position,
    counts: Mapping[str, int],
    ranks: int = 1,
) -> dict[str, str]:
    """The size of the data, words, parameters, machine and where it starts, by name.

    Args:
        model, train_data, dev_data, config: as ``train`` gets them.
        position: where it starts, as ``train`` tells ``on_start``.
        counts: how often each word occurs in the training captions.
        ranks: processes that train together.
    """
    device = next(model.parameters()).device
    learnt = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    machine = Machine.this(device, ranks)
    precision = "bfloat16 where that is safe" if config.amp else "float32"
    return {
        "to train": _size(train_data),
        "to choose": _size(dev_data),
        "words": _words(train_data.vocabulary, counts),
        "model": f"{model.kind}, {learnt:,} parameters to learn",
        "on": f"{machine}, {precision}",
        "start": _start(position, config, config.steps_of(train_data.n_captions)),
    }


def _size(data: Corpus) -> str:
    return f"{data.n_images:,} images with {data.n_captions:,} captions"


def _words(vocabulary: Vocabulary, counts: Mapping[str, int]) -> str:
    unknown = [count for word, count in counts.items() if word not in vocabulary]
    share = sum(unknown) / max(sum(counts.values()), 1)
    return f"{len(vocabulary):,} known; {len(unknown):,} others, {share:.1%} of the training captions, are <unk>"


def _start(position: Position, config: TrainingConfig, epoch_steps: int) -> str:
    steps = f"{config.epochs:,} epochs of {epoch_steps:,} steps"
    if position.step == 0:
        return f"anew: {steps}"
    if position.epoch >= config.epochs:
        return f"finished before: {steps}"
    return f"resumed in epoch {position.epoch + 1} after step {position.step:,}: {steps}"
