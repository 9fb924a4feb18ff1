"""Encoding in chunks: the gradients of the whole batch, dropout included, and the memory of a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.models.encoded import Encoded
from crossret.training.gradient_cache import GradientCache
from tests.models.batch import BOXES, FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, VARIANTS, of
from tests.training.toy import make_model

CPU = torch.device("cpu")
ITEMS = torch.arange(7) % 3  # a batch with images that are there more than once


def gradients_of(model: Any, chunk: int | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch of seven and every parameter's gradient; in chunks they are padded to their own longest."""
    features, boxes = (numbers.to(next(model.parameters()).dtype) for numbers in (FEATURES, BOXES))

    def encode_images(rows: slice) -> Encoded:
        items = ITEMS[rows]
        longest = int(REGION_LENGTHS[items].max())
        encoded: Encoded = model.encode_images(features[items, :longest], REGION_LENGTHS[items], boxes[items, :longest])
        return encoded

    def encode_captions(rows: slice) -> Encoded:
        items = ITEMS[rows]
        encoded: Encoded = model.encode_captions(TOKENS[items, : int(LENGTHS[items].max())], LENGTHS[items])
        return encoded

    encoders = encode_images, encode_captions
    if chunk is None:
        caches, sides = [], [encode(slice(len(ITEMS))) for encode in encoders]
    else:
        caches = [GradientCache(encode, len(ITEMS), chunk, CPU) for encode in encoders]
        sides = [cache.encoded for cache in caches]
    loss = model.loss(*sides, ITEMS)["loss"]
    loss.backward()
    for cache in caches:
        cache.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_the_whole_batch(variant: str) -> None:
    """In float64, as clipped similarities near zero make much of what float32 rounds.

    Chunks are padded less than the batch, whose padding holds numbers; the last is of one item.
    """
    (loss, expected), (cached, found) = (gradients_of(of(variant).double(), chunk) for chunk in (None, 2))
    torch.testing.assert_close(cached, loss, rtol=1e-12, atol=1e-12)
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10 * largest, msg=name)


@pytest.mark.parametrize("variant", ["sman", "han transformer", "mhsan"])
def test_a_chunk_is_dropped_out_of_alike_both_times(variant: str) -> None:
    """One chunk draws what a batch draws at once, and the generator is left as it is by the batch."""
    losses, gradients, states = [], [], []
    for chunk in (None, len(ITEMS)):
        torch.manual_seed(5)
        loss, found = gradients_of(of(variant).train(), chunk)
        losses.append(loss)
        gradients.append(found)
        states.append(torch.get_rng_state())
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(gradients[0], gradients[1])
    assert torch.equal(states[0], states[1])


def test_autocast_does_not_keep_weights_without_gradients() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        _, found = gradients_of(of("scan"), 3)
    with torch.autocast("cpu", torch.bfloat16):
        _, expected = gradients_of(of("scan"), None)
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 0.05 * largest, name


def test_what_is_not_trained_gets_no_gradient() -> None:
    model = of("scan")
    model.text.requires_grad_(False)
    _, found = gradients_of(model, 2)
    assert {name.split(".")[0] for name in found} == {"image"}


@contextmanager
def most_kept() -> Iterator[list[int]]:
    """The most bytes that autograd has kept at once for backward passes while the block runs."""
    now, most = 0, [0]

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now
            self.tensor = tensor
            now += tensor.nbytes
            most[0] = max(most[0], now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.tensor.nbytes

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        yield most


def test_the_graph_is_that_of_a_chunk() -> None:
    """Of encoders alone, whose activations are what a large batch has no memory for."""
    torch.manual_seed(0)
    n, model = 512, make_model(embed_dim=32)
    tokens, lengths = torch.ones(n, 12, dtype=torch.int64), torch.full((n,), 12)
    kept = []
    for chunk in (None, 16):
        with most_kept() as most:
            if chunk is None:
                model.encode_captions(tokens, lengths).sequences.square().sum().backward()
            else:
                cache = GradientCache(lambda rows: model.encode_captions(tokens[rows], lengths[rows]), n, chunk, CPU)
                cache.encoded.sequences.square().sum().backward()
                cache.backward()
        kept.append(most[0])
    assert kept[1] < kept[0] / 10
