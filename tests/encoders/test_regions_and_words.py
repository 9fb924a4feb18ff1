"""Encoders of regions and words: values against a word-by-word computation, padding, zero vectors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.encoders import RegionEncoder, WordEncoder, l2_normalize


def gru_by_hand(rnn: torch.nn.GRU, words: torch.Tensor, suffix: str = "_l0") -> list[torch.Tensor]:
    """States of one direction of a GRU from its definition (reset gate on the recurrent term, as torch's), float64."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weight = {name: getattr(rnn, f"{name}{suffix}").double() for name in names}
    state = words.new_zeros(rnn.hidden_size)
    states = []
    for word in words:
        r, z, n = (weight["weight_ih"] @ word + weight["bias_ih"]).chunk(3)
        r_h, z_h, n_h = (weight["weight_hh"] @ state + weight["bias_hh"]).chunk(3)
        update = torch.sigmoid(z + z_h)
        state = (1 - update) * torch.tanh(n + torch.sigmoid(r + r_h) * n_h) + update * state
        states.append(state)
    return states


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_words_are_encoded_as_in_equations_14_to_16(
    bidirectional: bool, normalize: bool, lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    encoder = WordEncoder(9, 4, 5, bidirectional=bidirectional, normalize=normalize)
    tokens = torch.randint(0, 9, (len(lengths), max(lengths)))
    encoded = encoder(tokens, torch.tensor(lengths))
    assert encoded.shape == (len(lengths), max(lengths), 5)
    with torch.no_grad():
        for item, length in enumerate(lengths):
            words = encoder.embed(tokens[item, :length]).double()
            expected = torch.stack(gru_by_hand(encoder.rnn, words))
            if bidirectional:
                backward = gru_by_hand(encoder.rnn, words.flip(0), "_l0_reverse")
                expected = (expected + torch.stack(backward).flip(0)) / 2
            if normalize:
                expected = expected / expected.norm(dim=1, keepdim=True)
            torch.testing.assert_close(encoded[item, :length].double(), expected, rtol=1e-5, atol=1e-6)
            assert not encoded[item, length:].any()


def test_parameters_are_initialised_as_the_paper_s() -> None:
    torch.manual_seed(0)
    linear = RegionEncoder(300, 200).fc
    bound = math.sqrt(6 / (300 + 200))
    assert not linear.bias.any()
    assert 0.98 * bound < linear.weight.abs().max() <= bound
    embedding = WordEncoder(500, 30, 4).embed.weight
    assert 0.099 < embedding.abs().max() <= 0.1


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12, 1e-7, 1.0, 1e6])
def test_normalised_vectors_and_gradients_are_finite(scale: float) -> None:
    x = (scale * torch.randn(4, 8, generator=torch.Generator().manual_seed(0))).requires_grad_()
    y = l2_normalize(x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    torch.testing.assert_close(y.norm(dim=1), torch.full((4,), 1.0 if scale > 1e-8 else 0.0))


def test_an_lstm_s_directions_are_averaged() -> None:
    encoder = WordEncoder(9, 4, 5, cell="lstm", normalize=False)
    tokens, lengths = torch.randint(0, 9, (3, 6)), torch.tensor([2, 6, 4])
    encoded = encoder(tokens, lengths)
    for item, length in enumerate(lengths.tolist()):
        states, _ = encoder.rnn(encoder.embed(tokens[item : item + 1, :length]))
        expected = states[0].unflatten(1, (2, 5)).mean(1)
        torch.testing.assert_close(encoded[item, :length], expected)
        assert not encoded[item, length:].any()
