"""Backend "reference" of Sum-Max: SCAN Eqs. 9 and 10 as einsums, everything materialised."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.options import MaxSimOptions
from crossret_kernels.maxsim.torch import argmaxima, pooled_maxima
from crossret_kernels.padded.forms import pad_pairs


def maxsim_scores_reference(regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions) -> Tensor:
    """Scores at the inputs' precision: the oracle when the inputs are float64."""
    return pooled_maxima(*_similarities(regions, words, pairs, options), options)


def maxsim_argmax_reference(
    regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions, width: int
) -> Tensor:
    """The best contexts (n_images, n_captions, width) or (P, width)."""
    with torch.no_grad():
        return argmaxima(*_similarities(regions, words, pairs, options), width)


def _similarities(
    regions: Ragged, words: Ragged, pairs: Tensor | None, options: MaxSimOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities (…, C, Q) of contexts and queries, and the masks (…, C) and (…, Q) of those that are no padding."""
    v, v_mask, e, e_mask = pad_pairs(regions, words, pairs, options.normalize)
    s = torch.einsum("...rd,...wd->...rw", v, e)
    return (s, v_mask, e_mask) if options.direction == "t2i" else (s.mT, e_mask, v_mask)
