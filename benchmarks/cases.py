"""Shapes and inputs of the benchmarks, and the per-caption loop that published SCAN code scores with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """Unit features: n_images × regions × dim against n_captions of shortest … longest words."""

    n_images: int
    n_captions: int
    regions: int = 36
    dim: int = 1024
    shortest: int = 6
    longest: int = 20

    def __str__(self) -> str:
        return f"{self.n_images}x{self.regions}x{self.dim}-{self.n_captions}x{self.shortest}..{self.longest}"

    def features(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        """Regions (n_images, R, D), words (n_captions, W, D), word lengths; the same on every call."""
        generator = torch.Generator().manual_seed(0)
        regions = torch.randn(self.n_images, self.regions, self.dim, generator=generator)
        words = torch.randn(self.n_captions, self.longest, self.dim, generator=generator)
        lengths = torch.randint(self.shortest, self.longest + 1, (self.n_captions,), generator=generator)
        return F.normalize(regions, dim=-1).to(dtype), F.normalize(words, dim=-1).to(dtype), lengths

    def flops(self, lengths: Tensor) -> int:
        """Of the similarity product, which bounds every score from below."""
        return 2 * self.n_images * self.regions * int(lengths.sum()) * self.dim


TRAINING_BATCH = Case(128, 128)
SETTINGS = {
    "t2i-lse": {"direction": "t2i", "lambda_softmax": 9.0, "pooling": "lse", "lambda_lse": 6.0},
    "i2t-avg": {"direction": "i2t", "lambda_softmax": 4.0, "pooling": "avg", "lambda_lse": 6.0},
}
EPS = 1e-8


def loop_scores(
    regions: Tensor,
    words: Tensor,
    lengths: Tensor,
    *,
    direction: str,
    lambda_softmax: float,
    pooling: str,
    lambda_lse: float,
) -> Tensor:
    """clipped_l2norm scores (n_images, n_captions), one caption at a time with every intermediate built."""
    columns = []
    for caption, length in zip(words, lengths.tolist(), strict=True):
        own = caption[:length].expand(len(regions), -1, -1)
        queries, contexts = (own, regions) if direction == "t2i" else (regions, own)
        similarities = F.leaky_relu(contexts @ queries.mT, 0.1)
        normalised = similarities / (similarities.square().sum(2, keepdim=True).sqrt() + EPS)
        weights = torch.softmax(lambda_softmax * normalised.mT, 2)
        attended = weights @ contexts
        lengths_product = queries.norm(dim=2) * attended.norm(dim=2)
        relevance = (queries * attended).sum(2) / lengths_product.clamp(min=EPS)
        pooled = relevance.mean(1) if pooling == "avg" else torch.logsumexp(lambda_lse * relevance, 1) / lambda_lse
        columns.append(pooled)
    return torch.stack(columns, 1)
