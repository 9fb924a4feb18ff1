"""The gradients of a step: of a rank's share of its batches, encoded at once or in chunks, summed over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from crossret.data.batches import Batch, Regions
from crossret.distributed import Group, Share, sum_gradients
from crossret.hyperparameters import TrainingConfig
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher
from crossret.training.gradient_cache import GradientCache


def add_gradients(
    model: Matcher, group: Group, config: TrainingConfig, batches: Sequence[tuple[Share, Batch]], place: str
) -> tuple[dict[str, float], float]:
    """Give the model's parameters the gradients of a step, no larger than ``config.gradient_norm``.

    Args:
        model: without gradients.
        group: the ranks, which all do this.
        batches: of the step: what this rank has of each, and the items ``share.encoded_rows`` of it.
        place: the step, for errors.

    Returns:
        The loss terms by name, means over the batches, and the gradients' L2 norm before they were scaled down; the
        same on all ranks.

    Raises:
        ValueError: the loss or the norm is not finite; names the step and, if it is the features' fault, their image.
            On all ranks. RankLost: another rank has ended.
    """
    parts: list[dict[str, Tensor]] = []
    for share, batch in batches:
        loss = _BatchLoss(model, share, batch, config)
        loss.backward()
        parts.append({name: term.detach() for name, term in loss.terms.items()})
    sum_gradients(group, model.parameters())
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    total = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if config.gradient_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, config.gradient_norm, total)
    # A GPU is waited for once a step, when it has been told all of it.
    told = [*(term for part in parts for term in part.values()), total]
    *values, norm = torch.stack([x.double() for x in told]).tolist()
    summed = iter(group.summed(values))
    terms: dict[str, float] = {}
    for part, (_, batch) in zip(parts, batches, strict=True):
        found = {name: next(summed) for name in part}
        _check_finite("loss", found["loss"], [batch], group, place)
        for name, value in found.items():
            terms[name] = terms.get(name, 0.0) + value / len(batches)
    _check_finite("gradient's norm", norm, [batch for _, batch in batches], group, place)
    return terms, norm


class _BatchLoss:
    """The loss of a batch of which this rank has a share; ``terms`` are its share of the whole batch's."""

    def __init__(self, model: Matcher, share: Share, batch: Batch, config: TrainingConfig) -> None:
        device = next(model.parameters()).device
        tokens, lengths = (part.to(device, non_blocking=True) for part in (batch.tokens, batch.lengths))
        regions = Regions(batch.regions, batch.boxes, batch.clusters, batch.region_lengths).on(device)

        def autocast() -> torch.autocast:
            return torch.autocast(device.type, torch.bfloat16, enabled=config.amp)

        def encode_images(rows: slice) -> Encoded:
            with autocast():
                return model.encode_images(**{name: part[rows] for name, part in regions.items()})

        def encode_captions(rows: slice) -> Encoded:
            with autocast():
                return model.encode_captions(tokens[rows], lengths[rows])

        encoders = encode_images, encode_captions
        if config.encode_chunk is None:
            self._caches: list[GradientCache] = []
            sides = [encode(slice(len(batch))) for encode in encoders]
        else:
            self._caches = [GradientCache(encode, len(batch), config.encode_chunk, device) for encode in encoders]
            sides = [cache.encoded for cache in self._caches]
        images, captions = (side[: share.n] for side in sides)
        image_ids = None if config.same_image_negatives else batch.image_ids[: share.n].to(device)
        with autocast():
            self.terms = model.loss(images, captions, image_ids, share)

    def backward(self) -> None:
        """Add the gradients of this rank's share to those that the parameters have."""
        torch.autograd.backward(self.terms["loss"])
        for cache in self._caches:
            cache.backward()


def _check_finite(name: str, value: float, batches: Sequence[Batch], group: Group, place: str) -> None:
    """All ranks have the same value here, and have looked at all that they read when they raise the same."""
    if math.isfinite(value):
        return
    found = next((image for image in group.values(_not_finite(batches)) if image is not None), None)
    why = "the learning rate is too high, or the features are too large"
    if found is not None:
        why = f"the features of training image {found} are not finite"
    raise ValueError(f"the {name} is {value} at {place}: {why}")


def _not_finite(batches: Sequence[Batch]) -> int | None:
    """The first image of which a feature is not finite, if there is one."""
    for batch in batches:
        features = batch.regions.to(torch.device("cpu"))
        if not isinstance(features, Tensor):  # pictures, whose pixels are
            continue
        wrong = (~features.isfinite().flatten(1).all(1)).nonzero()
        if len(wrong):
            return int(batch.image_ids[wrong[0]])
    return None
