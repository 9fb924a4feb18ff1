"""Encoding a data set and scoring every image of it with every caption."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.corpus import ALL, Corpus, check_readable, corpus_for
from crossret.evaluation.finiteness import check_finite
from crossret.models.base import encoder_of
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating
from crossret.progress import Progress
from crossret_kernels.extending import serving

_logger = logging.getLogger(__name__)
LEAST_ITEMS = 128
GPU_ITEMS = 1024  # 300 MB of 36 float32 features of 2,048 numbers


def items_at_once(model: Matcher, least: int) -> int:
    """Items to encode at a time: on a GPU more, unless they are pictures, as small batches leave most of it idle."""
    on_gpu = next(model.parameters()).device.type == "cuda" and encoder_of(model) is None
    return max(least, GPU_ITEMS) if on_gpu else least


def encode_dataset(
    model: Matcher,
    data: Corpus,
    *,
    batch_size: int | None = None,
    image_items: slice = ALL,
    caption_items: slice = ALL,
    progress: Progress | None = None,
) -> tuple[Encoded, Encoded]:
    """Encode every image once and every caption, in evaluation mode and without gradients.

    Args:
        model: any model; its mode is restored.
        data: the images and captions.
        batch_size: items encoded at a time; by default 128, and on a GPU as ``items_at_once``.
        image_items, caption_items: which of them, one after another and at least one; by default all.
        progress: called with (images and captions done, all of them); first, where regions are to be clustered, with
            (images done, all of them).

    Returns:
        (images, captions): an entry for each, on the model's device.

    Raises:
        ValueError: as ``check_readable``.
    """
    check_readable(model.config, data)
    data = corpus_for(model.config, data, progress)
    device = next(model.parameters()).device
    batch_size = items_at_once(model, LEAST_ITEMS) if batch_size is None else batch_size
    n_images, n_captions = (
        len(range(n)[items]) for n, items in ((data.n_images, image_items), (data.n_captions, caption_items))
    )
    total = n_images + n_captions

    def collect(batches: Iterable[Encoded], done: int) -> Encoded:
        parts = []
        for part in batches:
            parts.append(part)
            done += len(part)
            if progress is not None:
                progress(done, total)
        return Encoded.concat(parts)

    with evaluating(model), torch.inference_mode():
        images = collect(
            (model.encode_images(**regions.on(device)) for regions in data.image_batches(batch_size, image_items)),
            0,
        )
        captions = collect(
            (
                model.encode_captions(tokens.to(device), lengths.to(device))
                for tokens, lengths in data.caption_batches(batch_size, caption_items)
            ),
            n_images,
        )
    return images, captions


def score_matrix(
    model: Matcher,
    images: Encoded,
    captions: Encoded,
    *,
    block: int = 512,
    corpus: Corpus | None = None,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Score every image with every caption.

    Args:
        images, captions: as ``encode_dataset`` returned them.
        block: captions scored at a time, with all images.
        corpus: source of these encodings, where every score has to be a finite number; None lets any pass.
        progress: called with (captions done, all of them).

    Returns:
        (n_images, n_captions) float32.

    Raises:
        ValueError: as ``check_finite`` with ``corpus``, at the first block that has such a score.
    """
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if _logger.isEnabledFor(logging.INFO):
        values = images.sequences
        backend = serving(values.device, values.dtype)
        _logger.info("%s scores on %s; where kernels serve it, by backend %s", model.kind, values.device, backend)
    scores = np.empty((len(images), len(captions)), dtype=np.float32)
    with evaluating(model), torch.inference_mode():
        for start in range(0, len(captions), block):
            part: Tensor = model.score(images, captions[start : start + block])
            scores[:, start : start + block] = part.float().cpu().numpy()
            if corpus is not None:
                check_finite(scores[:, start : start + block], corpus, first_caption=start)
            if progress is not None:
                progress(min(start + block, len(captions)), len(captions))
    return scores
