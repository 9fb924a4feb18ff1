"""Backend "reference" of Sum-Max: SCAN Eqs. 9 and 10 as einsums, everything materialised."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.arithmetic import pool, safe_normalize
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.ragged import Ragged, pad


def maxsim_scores_reference(regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions) -> Tensor:
    """Scores at the inputs' precision: the oracle when the inputs are float64."""
    (v, v_mask), (e, e_mask) = (pad(side.packed(), side.lengths.tolist()) for side in (regions, words))
    if options.normalize:
        v, e = safe_normalize(v), safe_normalize(e)
    if pairs is None:
        s = torch.einsum("ird,cwd->icrw", v, e)
        v_mask, e_mask = v_mask[:, None], e_mask[None]
    else:
        s = torch.einsum("prd,pwd->prw", v[pairs[:, 0]], e[pairs[:, 1]])
        v_mask, e_mask = v_mask[pairs[:, 0]], e_mask[pairs[:, 1]]
    if options.direction == "t2i":
        best = s.masked_fill(~v_mask[..., :, None], -torch.inf).max(-2).values
        return pool(best, e_mask.expand(best.shape), options.pooling, 1.0)
    best = s.masked_fill(~e_mask[..., None, :], -torch.inf).max(-1).values
    return pool(best, v_mask.expand(best.shape), options.pooling, 1.0)
