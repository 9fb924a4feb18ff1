"""Summary of a training before it begins, in a few facts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from crossret.data.corpus import Corpus, PrecomputedCorpus, may_read_boxes
from crossret.data.vocabulary import Vocabulary
from crossret.hyperparameters import ModelConfig, TrainingConfig
from crossret.models.base import TEXT_ENCODER, pretrained_parts
from crossret.models.protocol import Matcher
from crossret.training.callbacks import Start
from crossret.training.state import Machine

_MERITS = {"rsum": "rsum", "r1": "R@1 of both directions"}


def facts_of(
    start: Start,
    train_data: Corpus,
    dev_data: Corpus,
    counts: Mapping[str, int],
    ranks: int = 1,
    *,
    dev_images: int | None = None,
) -> dict[str, str]:
    """The size of the data, words, the order of regions where it matters, parameters, machine and start, by name.

    Args:
        start: as callbacks are told.
        train_data, dev_data: as ``train`` gets them.
        counts: how often each word that the model reads occurs in the training captions; none where it reads tokens.
        ranks: processes that train together.
        dev_images: how many the development split has, where ``dev_data`` may be its first.
    """
    model, config = start.model, start.config
    device = next(model.parameters()).device
    machine = Machine.this(device, ranks)
    precision = "bfloat16 where that is safe" if config.amp else "float32"
    if config.tf32 and device.type == "cuda":
        precision += ", products of float32 in TF32"
    return {
        "to train": _size(train_data),
        "to choose": f"{_size(dev_data, dev_images)}, by the highest {_MERITS[config.select_by]}",
        **_captions(model, train_data, counts),
        **_order(model.config, train_data),
        **_features(start, device),
        "model": f"{model.kind}, {count_learnt(model, config):,} parameters to learn",
        "on": f"{machine}, {precision}",
        "start": _start(start),
    }


def count_learnt(model: Matcher, config: TrainingConfig) -> int:
    """How many numbers a training learns: those that require a gradient and that the model trains in some epoch."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and any(model.trains(name, epoch) for epoch in range(config.epochs))
    )


def _size(data: Corpus, of: int | None = None) -> str:
    images = f"{data.n_images:,}" if of in (None, data.n_images) else f"the first {data.n_images:,} of {of:,}"
    return f"{images} images with {data.n_captions:,} captions"


def _captions(model: Matcher, data: Corpus, counts: Mapping[str, int]) -> dict[str, str]:
    """Form of the captions: words or tokens."""
    if data.vocabulary is not None:
        return {"words": _words(data.vocabulary, counts)}
    if (part := pretrained_parts(model).get(TEXT_ENCODER)) is not None:
        return {"captions": f"texts, read by {part.reader.name}, {'which is trained' if part.is_trained else 'frozen'}"}
    name = data.data.words_name if isinstance(data, PrecomputedCorpus) else data.name
    return {"captions": f"tokens of {model.config.text_dim:,} numbers, {name}"}


def _words(vocabulary: Vocabulary, counts: Mapping[str, int]) -> str:
    unknown = [count for word, count in counts.items() if word not in vocabulary]
    share = sum(unknown) / max(sum(counts.values()), 1)
    return f"{len(vocabulary):,} known; {len(unknown):,} others, {share:.1%} of the training captions, are <unk>"


def _features(start: Start, device: torch.device) -> dict[str, str]:
    """Where a GPU's batches have them from."""
    if device.type != "cuda":
        return {}
    held = f"{start.bytes_held / 1e9:,.1f} GB are on the GPU" if start.bytes_held else "read batch by batch"
    return {"features": held}


def _order(config: ModelConfig, data: Corpus) -> dict[str, str]:
    """How regions are ordered for a model to which that matters."""
    if not may_read_boxes(config):
        return {}
    if data.has_boxes and config.spatial_order is not False:
        return {"regions": f"in spatial order, from the top down, by {data.boxes_name}"}
    why = "this model was trained so" if data.has_boxes else f"there is no {data.boxes_name}"
    return {"regions": f"as they come, not in spatial order: {why}"}


def _start(start: Start) -> str:
    steps = f"{start.config.epochs:,} epochs of {start.epoch_steps:,} steps"
    if start.step == 0:
        return f"anew: {steps}"
    if start.epoch >= start.config.epochs:
        return f"finished before: {steps}"
    return f"resumed in epoch {start.epoch + 1} after step {start.step:,}: {steps}"
