"""Contributions to scores of Sum-Max: the row that each row of a side takes, and its share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels.inputs.blocks import FeatureBlocks
from crossret_kernels.inputs.call import Call
from crossret_kernels.inputs.options import DIRECTIONS, choose
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.op import score_call
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.torch import clipped
from crossret_kernels.padded.arithmetic import pooled_shares, safe_normalize
from crossret_kernels.padded.chunked import WORKSPACE_BYTES
from crossret_kernels.padded.forms import gather_items
from crossret_kernels.topk.candidates import pair_runs


def best_rows(images: Ragged, captions: Ragged, pairs: Tensor, options: MaxSimOptions) -> tuple[Tensor, Tensor, Tensor]:
    """For every row of the maximising side of P listed pairs, (P, Q): whether there is one, the place of the row that
    it takes, and the similarity of both in float64. Of equals the first; −1 and 0 where there is none.

    Made in float64 for as many pairs at a time as bounded memory holds, of one pair at least.
    """
    choose("context_pooling", options.context_pooling, ("max",))
    choose("direction", options.direction, DIRECTIONS)
    widths = images.width, captions.width
    pair_bytes = 2 * torch.float64.itemsize * (sum(widths) * images.values.size(-1) + widths[0] * widths[1])
    runs = pairs.split(max(1, WORKSPACE_BYTES // pair_bytes))
    parts = zip(*(_best_rows(images, captions, run, options) for run in runs), strict=True)
    mask, places, similarities = map(torch.cat, parts)
    return mask, places, similarities


def _best_rows(
    images: Ragged, captions: Ragged, pairs: Tensor, options: MaxSimOptions
) -> tuple[Tensor, Tensor, Tensor]:
    vectors, masks = [], []
    for side, items in zip((images, captions), pairs.unbind(1), strict=True):
        rows, mask = gather_items(side, items, side.width)
        vectors.append(safe_normalize(rows.double()) if options.normalize else rows.double())
        masks.append(mask & ~side.empty[items][:, None])
    (queries, contexts), (mask, valid) = (x if options.direction == "i2t" else x[::-1] for x in (vectors, masks))
    mask = mask & valid.any(1, keepdim=True)
    best = (queries @ contexts.mT).masked_fill(~valid[:, None], -torch.inf).max(2)
    return mask, best.indices.masked_fill(~mask, -1), best.values.masked_fill(~mask, 0)


def maxsim_contributions(
    call: Call, options: MaxSimOptions, backend: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores (P,) of pairs without empty items; places, similarities and shares (P, Q), float64, of `best_rows`."""
    assert call.listed is not None
    scores = score_call(call, options, backend)
    mask, places, similarities = best_rows(call.images, call.captions, call.listed, options)
    values = clipped(similarities, options)
    shares = pooled_shares(scores, values, mask, options.pooling, options.lambda_lse, options.top)
    return call.as_scores(scores), call.shaped(places), call.shaped(similarities), call.shaped(shares)


def maxsim_alignment(
    images: FeatureBlocks,
    captions: FeatureBlocks,
    indices: NDArray[np.int64],
    options: MaxSimOptions,
    as_sides: Callable[[Any, Any], tuple[Ragged, Ragged]],
) -> tuple[Tensor, Tensor]:
    """Places and similarities of `best_rows` for each image with the captions found for it, (n_images, K, Q) each.

    Captions that were found are read, and no others.

    Args:
        indices: (n_images, K), places of captions; −1 for none, of which all places are −1 and similarities 0.
        as_sides: of a block of images and one of captions.
    """
    rows = images.offsets.diff() if options.direction == "i2t" else captions.offsets.diff()[indices[indices >= 0]]
    width = max(1, int(rows.max())) if len(rows) else 1
    places = torch.full((indices.size, width), -1, device=images.device)
    similarities = torch.zeros(indices.size, width, dtype=torch.float64, device=images.device)
    with torch.no_grad():
        for pair_places, image_block, caption_block, pairs, _ in pair_runs(images, captions, indices):
            sides = as_sides(image_block, caption_block)
            _, *results = best_rows(*sides, pairs.to(images.device), options)
            for total, part in zip((places, similarities), results, strict=True):
                total[torch.from_numpy(pair_places), : part.size(1)] = part
    return places.view(*indices.shape, width), similarities.view(*indices.shape, width)
