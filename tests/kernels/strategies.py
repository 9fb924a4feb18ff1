"""Hypothesis strategies for batches of ragged features and for the options of the scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

DIRECTIONS = ("t2i", "i2t")
NORM_MODES = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm")
RELEVANCES = ("cosine", "projection")
POOLINGS = ("lse", "avg", "sum", "max", "softmax")
FULL_EXAMPLES = 100  # of the profiles that run all
FEW_ITEMS = (3, 4)  # which take several tiles of Triton's interpreter, and not many: it takes seconds over each


def examples(count: int, **others: Any) -> settings:
    """Settings of a test that wants `count` examples, of which the profile at hand may run a part."""
    return settings(max_examples=max(1, count * settings.default.max_examples // FULL_EXAMPLES), **others)


@dataclass(frozen=True)
class Features:
    """A padded batch, float64 values that every narrower dtype in use represents after `to`."""

    regions: Tensor
    words: Tensor
    region_lengths: Tensor
    word_lengths: Tensor
    pairs: Tensor | None
    kind: str = "none"

    def __repr__(self) -> str:
        lengths = f"{self.region_lengths.tolist()} × {self.word_lengths.tolist()}"
        pairs = "all pairs" if self.pairs is None else f"pairs {self.pairs.tolist()}"
        return f"Features({lengths}, D = {self.regions.size(-1)}, {self.kind}, {pairs})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every value

    def to(self, dtype: torch.dtype) -> Features:
        return replace(self, regions=self.regions.to(dtype), words=self.words.to(dtype))

    @property
    def lengths(self) -> tuple[Tensor, Tensor]:
        return self.region_lengths, self.word_lengths

    def arguments(self, layout: str = "padded") -> tuple[Any, ...]:
        """Positional arguments of a scoring function, in one of the three layouts."""
        if layout == "padded":
            return self.regions, self.words, self.region_lengths, self.word_lengths
        sides = []
        for values, lengths in ((self.regions, self.region_lengths), (self.words, self.word_lengths)):
            items = [item[:length] for item, length in zip(values, lengths.tolist(), strict=True)]
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            sides.append(items if layout == "list" else (torch.cat(items), offsets))
        return tuple(sides)


# What real batches hold now and then, and careless kernels die of.
DEGENERACIES = (
    "none",
    "none",
    "zero region",
    "zero word",
    "all negative",
    "duplicates",
    "opposites",
    "small",
    "below the cosine's floor",
    "large",
    "correlated",
)
# Gradients of normalised features grow as features shrink: these pass the largest float16.
IN_HALF_RANGE = tuple(kind for kind in DEGENERACIES if kind != "below the cosine's floor")


def listed_pairs(batch: Features) -> Tensor:
    """Every pair, the last first, and some of them twice."""
    every = torch.cartesian_prod(torch.arange(len(batch.regions)), torch.arange(len(batch.words))).flip(0)
    return torch.cat([every, every[::3]])


DIMS = (1, 2, 3, 8, 16, 17, 31, 64, 100, 257)


@st.composite
def features(
    draw: st.DrawFn,
    degeneracies: tuple[str, ...] = DEGENERACIES,
    most: tuple[int, int] = (5, 7),
    dims: tuple[int, ...] = DIMS,
) -> Features:
    """Batches around the vector widths and tile heights of every kernel, in every degenerate form.

    Of at most so many images and captions.
    """
    n_images, n_captions = (draw(st.integers(1, count)) for count in most)
    longest_image = draw(st.sampled_from((1, 2, 5, 6, 7, 12, 13, 17, 36)))
    longest_caption = draw(st.sampled_from((1, 2, 4, 9, 15, 16, 17, 33)))
    dim = draw(st.sampled_from(dims))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    regions = torch.randn(n_images, longest_image, dim, generator=generator, dtype=torch.float64)
    words = torch.randn(n_captions, longest_caption, dim, generator=generator, dtype=torch.float64)
    kind = draw(st.sampled_from(degeneracies))
    if kind == "zero region":
        regions[draw(st.integers(0, n_images - 1)), 0] = 0
    elif kind == "zero word":
        words[draw(st.integers(0, n_captions - 1)), 0] = 0
    elif kind == "all negative":
        regions, words = regions.abs(), -words.abs()
    elif kind == "duplicates":
        regions[:] = regions[:, :1]
        words[:, :2] = words[:, :1]
    elif kind == "opposites" and longest_image > 1:
        regions[:, 1] = -regions[:, 0]
        if longest_caption > 1:
            words[:, 1] = -words[:, 0]
    elif kind == "small":
        regions, words = regions * 1e-3, words * 1e-3
    elif kind == "below the cosine's floor":
        regions, words = regions * 1e-6, words * 1e-5
    elif kind == "large":
        regions = regions * 30
    elif kind == "correlated":
        regions, words = regions * 0.1 + regions[:1, :1], words * 0.1 + regions[:1, :1]
    lengths = [
        torch.randint(1, longest + 1, (n,), generator=generator)
        for n, longest in ((n_images, longest_image), (n_captions, longest_caption))
    ]
    pairs = None
    if draw(st.booleans()):
        count = draw(st.integers(1, 12))
        pairs = torch.stack([torch.randint(0, n, (count,), generator=generator) for n in (n_images, n_captions)], 1)
    return Features(regions, words, lengths[0], lengths[1], pairs, kind)


@st.composite
def scan_options(draw: st.DrawFn, backend: str = "cpu", directions: tuple[str, ...] = DIRECTIONS) -> dict[str, Any]:
    """Options that kernels of "cpu" and "triton" and PyTorch operations compute by, or those of "cuda"."""
    options = _options_of_every_backend(draw, directions)
    if backend != "cuda":
        options |= {
            "relevance": draw(st.sampled_from(RELEVANCES)),
            "focal": draw(st.sampled_from((False, False, True))),
        }
        if draw(st.integers(0, 3)) == 0:
            options |= {"raw_feature_norm": "minmax", "threshold": draw(st.sampled_from((None, 0.0, 0.3, 1.0)))}
    if options["direction"] == "both" and draw(st.booleans()):
        options["lambda_softmax"] = options["lambda_softmax"], 4.0
    return options


def _options_of_every_backend(draw: st.DrawFn, directions: tuple[str, ...]) -> dict[str, Any]:
    return {
        "direction": draw(st.sampled_from(directions)),
        "raw_feature_norm": draw(st.sampled_from(NORM_MODES)),
        "clip_slope": draw(st.sampled_from((0.0, 0.1, 0.1, 1.0, -0.5))),
        "lambda_softmax": draw(st.sampled_from((0.0, 0.9, 4.0, 9.0, 9.0, 20.0, 100.0, -3.0))),
        "pooling": draw(st.sampled_from(POOLINGS)),
        "lambda_lse": draw(st.sampled_from((0.1, 6.0, 20.0, 200.0))),
        "normalize": draw(st.booleans()),
    }


@st.composite
def maxsim_options(draw: st.DrawFn, one_way: bool = False, soft: bool = False) -> dict[str, Any]:
    """Options of `maxsim_scores`; `soft` ones have soft maxima among them."""
    options = {
        "direction": draw(st.sampled_from(DIRECTIONS if one_way else (*DIRECTIONS, "both"))),
        "pooling": draw(st.sampled_from(("sum", "avg", "max", "sum", "avg", "max", "lse", "softmax", "topk"))),
        "normalize": draw(st.booleans()),
        "clip_slope": draw(st.sampled_from((1.0, 1.0, 1.0, 0.1, 0.0))),
        "lambda_lse": draw(st.sampled_from((0.1, 1.0, 6.0))),
    }
    options["top"] = draw(st.sampled_from((1, 2, 5))) if options["pooling"] == "topk" else 0
    if soft:
        options["context_pooling"] = draw(st.sampled_from(("max", "lse")))
        options["temperature"] = draw(st.sampled_from((0.1, 1.0)))
    return options


def nearly_cancelling() -> Features:
    """Images of two regions that nearly cancel: pᵀGp is then a small difference of large terms."""
    generator = torch.Generator().manual_seed(3)
    regions = torch.randn(4, 2, 64, generator=generator, dtype=torch.float64)
    regions[:, 1] = -regions[:, 0] * (1 + 1e-3 * torch.arange(1, 5, dtype=torch.float64)[:, None])
    words = 1e-2 * torch.randn(5, 6, 64, generator=generator, dtype=torch.float64)
    return Features(regions, words, torch.full((4,), 2), torch.full((5,), 6), None)


def nearly_cancelling_numbers() -> Features:
    """Regions of one number each, whose mean is 3e-4 of what they are."""
    generator = torch.Generator().manual_seed(914)
    regions, words = (torch.randn(*shape, 1, generator=generator, dtype=torch.float64) for shape in ((2, 12), (3, 2)))
    return Features(regions, words, torch.tensor([7, 12]), torch.full((3,), 2), None)


def one_pair_listed_often() -> Features:
    """Words of which some are no region's best, though each has a best region."""
    generator = torch.Generator().manual_seed(0x1FFFFFFF)
    regions, words = (torch.randn(1, rows, 8, generator=generator, dtype=torch.float64) for rows in (7, 9))
    return Features(regions, words, *[torch.tensor([3])] * 2, torch.zeros(12, 2, dtype=torch.int64))
