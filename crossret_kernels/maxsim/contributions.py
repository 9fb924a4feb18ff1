"""What scores of Sum-Max are made of: which row each row of a side takes, and what it brings."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.pairs import Pairs, shape_scores
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.op import score_sides
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.shares import pooled_shares


def best_rows(images: Ragged, captions: Ragged, pairs: Tensor, options: MaxSimOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Of every row of the maximising side of P listed pairs, (P, Q): whether there is one, the place of the row that
    it takes, and the similarity of both in float64. Of equals the first; −1 and 0 where there is none.

    Similarities (P, Q, C) are materialised.
    """
    vectors, masks = [], []
    for side, items in zip((images, captions), pairs.unbind(1), strict=True):
        rows, mask = side.gathered(items, side.width)
        vectors.append(safe_normalize(rows.double()) if options.normalize else rows.double())
        masks.append(mask & ~side.empty[items][:, None])
    (queries, contexts), (mask, others) = (x if options.direction == "i2t" else x[::-1] for x in (vectors, masks))
    mask = mask & others.any(1, keepdim=True)
    best = (queries @ contexts.mT).masked_fill(~others[:, None], -torch.inf).max(2)
    return mask, best.indices.masked_fill(~mask, -1), best.values.masked_fill(~mask, 0)


def maxsim_contributions(
    images: Ragged, captions: Ragged, pairs: Pairs, options: MaxSimOptions, backend: str | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores (P,) of pairs without empty items; places, similarities and shares (P, Q), float64, of `best_rows`."""
    scores = shape_scores(score_sides(images, captions, pairs, options, None, backend), None)
    mask, places, similarities = best_rows(images, captions, pairs.listed(), options)
    return scores, places, similarities, pooled_shares(scores, similarities, mask, options.pooling, 1.0)
