"""N-gram convolutions: values against a loop over windows in float64, first values, mistakes."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from crossret.encoders import NgramEncoder
from tests.kernels.strategies import examples


def by_hand(encoder: NgramEncoder, words: torch.Tensor) -> torch.Tensor:
    """One caption (W, word_dim) → (W, D) from OAN's equations 1 and 2."""
    encoded = []
    for t in range(len(words)):
        grams = []
        for width, convolution in zip(encoder.widths, encoder.convolutions, strict=True):
            weight = convolution.weight.double()
            total = convolution.bias.double().clone()
            for k in range(width):
                place = t + k - (width - 1) // 2
                if 0 <= place < len(words):
                    total += weight[:, :, k] @ words[place]
            grams.append(total.tanh())
        encoded.append(torch.tanh(encoder.fc.weight.double() @ torch.cat(grams) + encoder.fc.bias.double()))
    return torch.stack(encoded)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    widths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
@examples(20)
def test_words_are_encoded_as_in_equations_1_and_2(lengths: list[int], widths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    encoder = NgramEncoder(9, 4, 5, widths=widths)
    for convolution in encoder.convolutions:
        torch.nn.init.normal_(convolution.bias)
    tokens = torch.randint(0, 9, (len(lengths), max(lengths) + 2))
    encoded = encoder(tokens, torch.tensor(lengths))
    assert encoded.shape == (len(lengths), max(lengths), 5)
    with torch.no_grad():
        for item, length in enumerate(lengths):
            expected = by_hand(encoder, encoder.embed(tokens[item, :length]).double())
            torch.testing.assert_close(encoded[item, :length].double(), expected, rtol=1e-5, atol=1e-6)
            assert not encoded[item, length:].any()


def test_parameters_start_as_xavier_s() -> None:
    encoder = NgramEncoder(9, 300, 200)
    for width, convolution in zip((1, 2, 3, 5, 7), encoder.convolutions, strict=True):
        bound = math.sqrt(6 / (width * 500))
        assert 0.98 * bound < convolution.weight.abs().max() <= bound
        assert not convolution.bias.any()
    assert not encoder.fc.bias.any()
