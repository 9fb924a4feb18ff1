"""A few rows against many, which are multiplied where they lie: many groups, blocks and strides, every layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from crossret_kernels import scan_scores
from tests.kernels.holes import Holes
from tests.kernels.strategies import Features
from tests.kernels.tolerance import ISAS, Expectation

directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])
sizes = pytest.mark.parametrize(("n_images", "n_captions"), [(70, 1), (1, 70), (2, 3)])


def make_batch(n_images: int, n_captions: int, dim: int) -> Features:
    generator = torch.Generator().manual_seed(n_images)
    regions = torch.randn(n_images, 40, dim, generator=generator, dtype=torch.float64) / dim**0.5
    words = torch.randn(n_captions, 15, dim, generator=generator, dtype=torch.float64) / dim**0.5
    region_lengths = torch.randint(1, 41, (n_images,), generator=generator)
    word_lengths = torch.randint(1, 16, (n_captions,), generator=generator)
    return Features(regions, words, region_lengths, word_lengths, None)


@directions
@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalize", [False, True])
def test_scores_and_gradients(
    n_images: int, n_captions: int, direction: str, dtype: torch.dtype, normalize: bool
) -> None:
    batch = make_batch(n_images, n_captions, 323)
    expected = Expectation.of(scan_scores, batch, dtype, direction=direction, normalize=normalize)
    for isa in ISAS:
        expected.check("cpu", isa)


@directions
@sizes
@pytest.mark.parametrize("dim", [1024, 323], ids=lambda dim: f"rows of {4 * dim} bytes")
def test_a_layout_does_not_show(n_images: int, n_captions: int, direction: str, dim: int) -> None:
    batch = make_batch(n_images, n_captions, dim).to(torch.float32)
    expected = scan_scores(*batch.arguments("packed"), direction=direction, backend="cpu")
    sides = zip((batch.regions, batch.words), batch.lengths, strict=True)
    regions, words = (Holes.of(*side, seed) for seed, side in enumerate(sides))
    masks = {"region_mask": regions.mask, "word_mask": words.mask}
    # Items without holes among others: read where they are, beside those that are copied.
    some = [Holes(side.values.clone(), side.mask.clone()) for side in (regions, words)]
    for side, values, lengths in zip(some, (batch.regions, batch.words), batch.lengths, strict=True):
        for item in range(1, len(values), 2):
            side.mask[item] = torch.arange(side.mask.size(1)) < lengths[item]
            side.values[item, : values.size(1)] = values[item]
    some_masks = {"region_mask": some[0].mask, "word_mask": some[1].mask}

    def spaced(side: Tensor) -> Tensor:
        """The same features as a view of wider rows, which begin anywhere."""
        return torch.nn.functional.pad(side, (3, 2))[..., 3 : 3 + dim]

    forms = {
        "padded": (batch.arguments("padded"), {}),
        "list": (batch.arguments("list"), {}),
        "masks": ((regions.values, words.values), masks),
        "some masks": ((some[0].values, some[1].values), some_masks),
        "views": ((spaced(batch.regions), spaced(batch.words), *batch.lengths), {}),
    }
    for name, (arguments, options) in forms.items():
        scores = scan_scores(*arguments, direction=direction, backend="cpu", **options)
        assert torch.equal(scores, expected), name
