"""Shapes and inputs of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SETTINGS: dict[str, dict[str, Any]] = {
    "t2i LSE": {"direction": "t2i", "lambda_softmax": 9.0, "pooling": "lse", "lambda_lse": 6.0},
    "i2t AVG": {"direction": "i2t", "lambda_softmax": 4.0, "pooling": "avg"},
}


@dataclass(frozen=True)
class Inputs:
    """Unit features, padded, with their lengths."""

    regions: Tensor
    region_lengths: Tensor
    words: Tensor
    word_lengths: Tensor

    @property
    def pairs(self) -> int:
        return len(self.regions) * len(self.words)

    @property
    def flop(self) -> int:
        """Flop of the similarity product, which every score needs."""
        return 2 * int(self.region_lengths.sum()) * int(self.word_lengths.sum()) * self.regions.size(-1)

    @property
    def bytes(self) -> int:
        """Bytes of valid features and scores, each moved once."""
        rows = int(self.region_lengths.sum()) + int(self.word_lengths.sum())
        return rows * self.regions.size(-1) * self.regions.itemsize + 4 * self.pairs

    def first(self, n_images: int, n_captions: int) -> Inputs:
        return Inputs(
            self.regions[:n_images],
            self.region_lengths[:n_images],
            self.words[:n_captions],
            self.word_lengths[:n_captions],
        )

    def pick(self, images: Tensor, captions: Tensor) -> Inputs:
        return Inputs(
            self.regions[images],
            self.region_lengths[images],
            self.words[captions],
            self.word_lengths[captions],
        )

    def to(self, dtype: torch.dtype) -> Inputs:
        return replace(self, regions=self.regions.to(dtype), words=self.words.to(dtype))

    def minus_item_means(self) -> Inputs:
        """Items whose features nearly cancel: their attended vectors are short differences of long sums."""

        def centred(values: Tensor, lengths: Tensor) -> Tensor:
            valid = (torch.arange(values.size(1)) < lengths[:, None])[:, :, None]
            mean = (values * valid).sum(1, keepdim=True) / lengths[:, None, None]
            return F.normalize((values - mean) * valid, dim=-1)

        return replace(
            self,
            regions=centred(self.regions, self.region_lengths),
            words=centred(self.words, self.word_lengths),
        )

    def packed_regions(self) -> tuple[Tensor, Tensor]:
        """(values (rows, D), cu_seqlens)."""
        return _pack(self.regions, self.region_lengths)

    def packed_words(self) -> tuple[Tensor, Tensor]:
        """(values (rows, D), cu_seqlens)."""
        return _pack(self.words, self.word_lengths)


def _pack(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.cat([item[:length] for item, length in zip(values, lengths.tolist(), strict=True)])
    return rows, F.pad(lengths.cumsum(0), (1, 0))


@dataclass(frozen=True)
class Case:
    """Items on both sides, their shortest and longest, and the features' dimension."""

    n_images: int
    n_captions: int
    dim: int = 1024
    regions: tuple[int, int] = (36, 36)
    words: tuple[int, int] = (6, 20)

    def __str__(self) -> str:
        sides = (self.n_images, self.regions), (self.n_captions, self.words)
        return " by ".join(f"{n:,} × {_range(*lengths)}" for n, lengths in sides) + f", D = {self.dim}"

    @property
    def shape(self) -> str:
        """Sizes of a pair, whatever the number of pairs."""
        return f"{_range(*self.regions)} regions × {_range(*self.words)} words, D = {self.dim}"

    def small(self) -> Case:
        """This kind of case at a size that takes no time, to be run as a test."""
        regions, words = ((min(low, 5 - (low < high)), min(high, 5)) for low, high in (self.regions, self.words))
        return Case(min(self.n_images, 3), min(self.n_captions, 3), min(self.dim, 12), regions, words)

    def inputs(self, device: torch.device | str = "cpu") -> Inputs:
        """float32 features, the same on every call, made where they are wanted; lengths stay on the host."""
        generator = torch.Generator(device).manual_seed(0)
        of_lengths = generator if generator.device.type == "cpu" else torch.Generator().manual_seed(0)

        def side(n: int, shortest: int, longest: int) -> tuple[Tensor, Tensor]:
            values = torch.randn(n, longest, self.dim, generator=generator, device=device)
            lengths = torch.randint(shortest, longest + 1, (n,), generator=of_lengths)
            return F.normalize(values, dim=-1), lengths

        return Inputs(*side(self.n_images, *self.regions), *side(self.n_captions, *self.words))


def _range(shortest: int, longest: int) -> str:
    return str(longest) if shortest == longest else f"{shortest}–{longest}"


TRAINING_BATCH = Case(128, 128)
# Documents stand for images and the query for a caption.
LATE_INTERACTION = Case(1000, 1, dim=128, regions=(128, 300), words=(32, 32))
INTERACTIVE_SEARCH = Case(1000, 1)
CORPUS_OF_IMAGES = Case(1000, 100)
CORPUS_OF_DOCUMENTS = Case(1000, 16, dim=128, regions=(128, 300), words=(32, 32))
BATCH_SIZES = [Case(64, 64), Case(128, 128), Case(256, 256), Case(512, 512)]
WHOLE_TEST_SET = Case(1000, 5000)
ODD_SIZES = [
    Case(36, 1),
    Case(36, 1, regions=(1, 1)),
    Case(36, 1, regions=(100, 100)),
    Case(36, 1, words=(80, 80)),
    Case(36, 1, dim=96),
    Case(36, 1, dim=300),
    Case(36, 1, dim=2048),
]
TINY = Case(1, 1, dim=64)
