"""The longest items that backend "cuda" of `scan_scores` attends to, on any device."""

from __future__ import annotations

import pytest
import torch

from crossret_kernels import scan_scores
from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.cuda.plan import most_attended_rows


def check_longest_contexts(device: torch.device, gradients: bool, dtype: torch.dtype, norm: str) -> None:
    """They are served whatever the norm, by blocks that fit; longer ones are refused. TF32 holds the features."""
    most = most_attended_rows(device, gradients)
    regions = torch.randn(1, most + 1, 4, generator=torch.Generator().manual_seed(0)).half().to(device, dtype)
    words = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1)).half().to(device, dtype)
    results = []
    for backend, cast in (("cuda", dtype), ("reference", torch.float64)):
        sides = [side.to(cast).clone().requires_grad_(gradients) for side in (regions[:, :most], words)]
        scores = scan_scores(*sides, raw_feature_norm=norm, lambda_softmax=2.0, backend=backend)
        results.append((scores, *(torch.autograd.grad(scores.sum(), sides) if gradients else ())))
    for ours, true in zip(*results, strict=True):
        unit = torch.finfo(ours.dtype).eps + 1e-5  # of bfloat16 gradients of similarities are too
        assert (ours.double() - true).abs().max() <= unit * true.abs().max()
    with pytest.raises(UnsupportedByBackend, match=f"attended items of up to {most} rows.*the longest has {most + 1}"):
        scan_scores(regions.requires_grad_(gradients), words, backend="cuda").sum().backward()
