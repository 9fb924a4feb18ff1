"""Gradients of half-precision features: summed in float32 however many passes that takes, and rounded once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from tests.kernels.tolerance import ISAS, cpu_isa

Function = Callable[..., Tensor]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounded_to_nearest_even(dtype: torch.dtype, isa: str) -> None:
    """∂L/∂region of one region and one word is grad · word: every bit pattern of the word, times what makes ties."""
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    scales = torch.tensor([1.0, 1 + 2.0**-8, 1 + 2.0**-9, 1 + 2.0**-11, -1.5, 1 / 3, 2.0**-7, 2.0**-13, 300.0])
    words = patterns.expand(len(scales), -1)[:, None, : 2**16 - 5]  # D ends within a vector
    regions = torch.zeros(1, 1, words.size(2), dtype=dtype).expand(len(scales), -1, -1).clone().requires_grad_()
    same = torch.arange(len(scales))[:, None].expand(-1, 2)
    with cpu_isa(isa):
        maxsim_scores(regions, words, pairs=same, backend="cpu").backward(scales)
    expected = (scales[:, None, None] * words.float()).to(dtype)
    torch.testing.assert_close(regions.grad, expected, rtol=0, atol=0, equal_nan=True)


def gradients(
    function: Function, sides: list[Tensor], pairs: Tensor | None, weights: Tensor, **options: object
) -> tuple[Tensor, ...]:
    leaves = [side.detach().clone().requires_grad_(side.requires_grad) for side in sides]
    lengths = [side.size(1) - torch.arange(len(side)) % 3 for side in sides]
    function(*leaves, *lengths, pairs=pairs, backend="cpu", **options).backward(weights)
    for leaf, length in zip(leaves, lengths, strict=True):
        if leaf.grad is not None:
            gaps = torch.arange(leaf.size(1)) >= length[:, None]
            assert not leaf.grad[gaps].any()
    return tuple(leaf.grad for leaf in leaves if leaf.grad is not None)


@pytest.mark.parametrize(
    ("function", "direction", "dtype"),
    [
        (scan_scores, "t2i", torch.float16),
        (scan_scores, "i2t", torch.bfloat16),
        (scan_scores, "both", torch.bfloat16),
        (maxsim_scores, "t2i", torch.bfloat16),
    ],
)
@pytest.mark.parametrize(
    ("images", "captions", "wanted"),
    [
        ((4, 6), (5, 7), "both"),  # all sums fit at once
        ((18, 16), (6, 10), "both"),  # the captions' do
        ((6, 10), (18, 16), "both"),  # the images' do
        ((18, 16), (16, 10), "both"),  # neither side's
        ((18, 16), (16, 10), "regions"),
        ((18, 16), (16, 10), "words"),
    ],
    ids=str,
)
def test_passes_do_not_show(
    function: Function,
    direction: str,
    dtype: torch.dtype,
    images: tuple[int, int],
    captions: tuple[int, int],
    wanted: str,
) -> None:
    generator = torch.Generator().manual_seed(0)
    sides = [torch.randn(*shape, 16384, generator=generator).to(dtype) for shape in (images, captions)]
    for side, name in zip(sides, ("regions", "words"), strict=True):
        side.requires_grad_(wanted in ("both", name))
    full = [side.detach().float().requires_grad_(side.requires_grad) for side in sides]
    listed = torch.stack([torch.randint(count, (90,), generator=generator) for count, _ in (images, captions)], 1)
    dense = torch.zeros(images[0], captions[0])
    dense[listed[:, 0], listed[:, 1]] = torch.randn(90, generator=generator)
    for pairs, weights in ((listed, torch.randn(90, generator=generator)), (None, dense)):
        options = {"direction": direction, "normalize": pairs is None}
        ours = gradients(function, sides, pairs, weights, **options)
        for narrow, wide in zip(ours, gradients(function, full, pairs, weights, **options), strict=True):
            assert narrow.dtype == dtype
            # Beside the rounding: sums in another order, and what float16 has below its normal range.
            bound = 0.501 * torch.finfo(dtype).eps * wide.abs() + 1e-6 * wide.abs().max() + 2.0**-25
            assert bool(((narrow.float() - wide).abs() <= bound).all())


@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
def test_strided_gradients_of_the_scores(function: Function) -> None:
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(n, 5, 16, generator=generator, requires_grad=True) for n in (7, 9)]
    dense, listed = torch.randn(9, 7, generator=generator), torch.randn(7, 3, generator=generator)
    pairs = torch.stack([torch.arange(7), torch.arange(7)], 1)
    for chosen, strided in ((None, dense.T), (None, dense[:1, :1].expand(7, 9)), (pairs, listed[:, 1])):
        assert not strided.is_contiguous()
        ours = gradients(function, sides, chosen, strided)
        torch.testing.assert_close(ours, gradients(function, sides, chosen, strided.contiguous()), rtol=0, atol=0)
