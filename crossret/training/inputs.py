"""Checks of a training's data, all of it and on all ranks, before it writes anything; and where it keeps features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm

from crossret.data.corpus import Corpus, PrecomputedCorpus
from crossret.data.held import bytes_of
from crossret.distributed import Group, Share
from crossret.evaluation.finiteness import check_features, check_tokens
from crossret.hyperparameters import TrainingConfig
from crossret.terminal import progress_bar


class PartialStatistics(UserWarning):
    """Batch normalisation sees parts of a batch, so that neither losses nor gradients are those of the whole."""


def check_all_features(corpora: Sequence[Corpus], group: Group, *, progress: bool) -> None:
    """Check as ``check_features``, each rank its share of the images, and as ``check_tokens``.

    Args:
        corpora: all data, the same on every rank.
        group: the ranks.
        progress: whether to show it on the terminal (standard error).

    Raises:
        ValueError: what ``check_features`` raises on any rank, on all of them. RankLost: another rank has ended.
    """
    found: str | None = None
    for corpus in corpora:
        share = Share.cut(group, corpus.n_images)
        try:
            with progress_bar("reading features") if progress else nullcontext() as show:
                check_features(corpus, items=share.encoded_rows, progress=show)
            if group.is_first:
                check_tokens(corpus)
        except ValueError as error:
            found = found or str(error)
    wrong = next((message for message in group.values(found) if message is not None), None)
    if wrong is not None:
        raise ValueError(wrong)


def held_on_gpu(
    corpora: Sequence[Corpus], device: torch.device, gibibytes: float | None, *, progress: bool
) -> list[Corpus]:
    """The corpora, of which a GPU holds the features of as many as fit, one after another (see ``held_on``).

    Args:
        corpora: the more often read ones first.
        device: where the model is; elsewhere than on a GPU they stay as they are.
        gibibytes: of the GPU's memory that features may take; None: half of what is free.
        progress: whether to show it on the terminal (standard error).
    """
    if device.type != "cuda":
        return list(corpora)
    left = torch.cuda.mem_get_info(device)[0] // 2 if gibibytes is None else int(gibibytes * 2**30)
    return held_within(corpora, device, left, progress=progress)


def held_within(corpora: Sequence[Corpus], device: torch.device, left: int, *, progress: bool) -> list[Corpus]:
    """Corpora as by ``held_on_gpu``, in so many bytes, on any device."""
    found = []
    for corpus in corpora:
        needed = bytes_of(corpus.data) if isinstance(corpus, PrecomputedCorpus) else 0
        if isinstance(corpus, PrecomputedCorpus) and 0 < needed <= left:
            left -= needed
            with progress_bar("features to the GPU") if progress else nullcontext() as show:
                corpus = corpus.held_on(device, show)
        found.append(corpus)
    return found


def check_agreement(group: Group, own: Mapping[str, Any]) -> None:
    """Raise a ValueError on all ranks where they do not train the same: where one's facts, by name, are not all's."""
    first, *others = group.values(dict(own))
    for rank, other in enumerate(others, start=1):
        for name, value in first.items():
            if other.get(name) != value:
                raise ValueError(f"rank {rank} trains with {name} = {other.get(name)}, rank 0 with {value}")


def warn_of_partial_statistics(model: Any, config: TrainingConfig, largest: int, group: Group) -> None:
    """Warn, on the first rank and in training mode, of a model that normalises by statistics of a part of a batch.

    Args:
        largest: captions of a whole batch.
    """
    norms = {name: part for name, part in model.named_modules() if isinstance(part, _BatchNorm) and part.training}
    own, chunk = -(-largest // group.size), config.encode_chunk
    if chunk is not None and chunk < own:
        apart, seen = list(norms), f"the {chunk} items of a chunk"
    else:
        apart = [name for name, part in norms.items() if group.size > 1 and not isinstance(part, SyncBatchNorm)]
        seen = f"the {own} items of a rank"
    if apart and group.is_first:
        more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
        warnings.warn(
            f"batch normalisation ({apart[0]}{more}) takes its statistics from {seen}, not from the batch of "
            f"{largest}: losses and gradients are others than those of the batch at once",
            PartialStatistics,
            stacklevel=3,
        )
