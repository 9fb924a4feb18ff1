"""A rank's share of a batch: encoded, at once or in chunks, its loss, and the way back."""

from __future__ import annotations

import torch

from crossret.data.batches import Batch, Regions
from crossret.distributed import Share
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher
from crossret.training.gradient_cache import GradientCache


class BatchLoss:
    """The loss of a batch of which this rank has a share, and its gradients.

    Args:
        model: what encodes and what has the loss.
        share: what this rank has of the batch.
        batch: the items ``share.encoded_rows``.
        amp: whether to compute in bfloat16 where torch.autocast holds that to be safe.
        chunk: items to be encoded at a time (``GradientCache``); None encodes all at once.
        same_image_negatives: whether captions of one image are each other's negatives, as if their images differed.

    Attributes:
        terms: the loss terms of the whole batch by name, the same on all ranks.
    """

    def __init__(
        self,
        model: Matcher,
        share: Share,
        batch: Batch,
        *,
        amp: bool,
        chunk: int | None,
        same_image_negatives: bool = False,
    ) -> None:
        device = next(model.parameters()).device
        tokens, lengths = (part.to(device, non_blocking=True) for part in (batch.tokens, batch.lengths))
        regions = Regions(batch.regions, batch.boxes, batch.clusters).on(device)

        def autocast() -> torch.autocast:
            return torch.autocast(device.type, torch.bfloat16, enabled=amp)

        def encode_images(rows: slice) -> Encoded:
            with autocast():
                return model.encode_images(**{name: part[rows] for name, part in regions.items()})

        def encode_captions(rows: slice) -> Encoded:
            with autocast():
                return model.encode_captions(tokens[rows], lengths[rows])

        encoders = encode_images, encode_captions
        if chunk is None:
            self._caches: list[GradientCache] = []
            sides = [encode(slice(len(batch))) for encode in encoders]
        else:
            self._caches = [GradientCache(encode, len(batch), chunk, device) for encode in encoders]
            sides = [cache.encoded for cache in self._caches]
        images, captions = (side[: share.n] for side in sides)
        image_ids = None if same_image_negatives else batch.image_ids[: share.n].to(device)
        with autocast():
            terms = model.loss(images, captions, image_ids, share)
        self._loss = terms["loss"]
        summed = share.group.summed([term.item() for term in terms.values()])
        self.terms = dict(zip(terms, summed, strict=True))

    def backward(self) -> None:
        """Add the gradients of this rank's share to those that the parameters have."""
        torch.autograd.backward(self._loss)
        for cache in self._caches:
            cache.backward()
