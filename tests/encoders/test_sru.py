"""Simple recurrent units: states against a word-by-word loop in float64, gradients, padding, dropout, first values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence

from crossret.encoders import SruEncoder
from crossret.encoders.sru import SruLayer
from crossret.encoders.sru_recurrence import sru_recurrence
from tests.kernels.strategies import examples


def layer_by_hand(layer: SruLayer, words: torch.Tensor) -> torch.Tensor:
    """One caption (W, input) → (W, state) from the equations."""
    weight, peephole, bias = layer.weight.double(), layer.peephole.double(), layer.bias.double()
    states = weight.shape[1]
    backward = torch.arange(states) >= (states // 2 if layer.bidirectional else states)
    hidden = torch.zeros(len(words), states, dtype=torch.float64)
    for reverse in (False, True):
        cell = torch.zeros(states, dtype=torch.float64)
        for t in reversed(range(len(words))) if reverse else range(len(words)):
            x = words[t]
            forget = torch.sigmoid(weight[1] @ x + peephole[0] * cell + bias[0])
            reset = torch.sigmoid(weight[2] @ x + peephole[1] * cell + bias[1])
            cell = forget * cell + (1 - forget) * (weight[0] @ x)
            highway = weight[3] @ x if len(weight) == 4 else x
            state = reset * cell.tanh() + (1 - reset) * highway
            hidden[t] = torch.where(backward == reverse, state, hidden[t])
    return hidden


@pytest.mark.parametrize("bidirectional", [True, False])
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), layers=st.integers(1, 3), seed=st.integers(0, 1000))
@examples(10)
def test_words_are_encoded_as_in_the_equations(bidirectional: bool, lengths: list[int], layers: int, seed: int) -> None:
    torch.manual_seed(seed)
    encoder = SruEncoder(9, 4, 6, layers=layers, bidirectional=bidirectional).eval()
    for layer in encoder.layers:
        torch.nn.init.normal_(layer.bias)
    tokens = torch.randint(0, 9, (len(lengths), max(lengths)))
    encoded = encoder(tokens, torch.tensor(lengths))
    assert encoded.shape == (len(lengths), max(lengths), 6)
    with torch.no_grad():
        for item, length in enumerate(lengths):
            words = encoder.embed(tokens[item, :length]).double()
            for layer in encoder.layers:
                words = layer_by_hand(layer, words)
            torch.testing.assert_close(encoded[item, :length].double(), words, rtol=1e-5, atol=1e-6)
            assert not encoded[item, length:].any()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 3], [2, 2], [1, 1, 4]])
def test_the_recurrence_passes_gradcheck(bidirectional: bool, lengths: list[int]) -> None:
    torch.manual_seed(0)
    padded = torch.zeros(len(lengths), max(lengths))
    sizes = pack_padded_sequence(padded, torch.tensor(lengths), batch_first=True, enforce_sorted=False).batch_sizes
    shapes = [(sum(lengths), 3, 4), (sum(lengths), 4), (2, 4)]
    inputs = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(lambda *x: sru_recurrence(*x, sizes, bidirectional=bidirectional), inputs)


def test_autocast_gives_the_recurrence_one_dtype() -> None:
    encoder = SruEncoder(9, 4, 6).eval()
    tokens, lengths = torch.randint(0, 9, (3, 5)), torch.tensor([5, 2, 3])
    with torch.autocast("cpu", torch.bfloat16):
        half = encoder(tokens, lengths)
    half.sum().backward()
    torch.testing.assert_close(half.float(), encoder(tokens, lengths), rtol=0.05, atol=0.02)


def test_dropout_is_between_layers_and_in_training_only() -> None:
    torch.manual_seed(0)
    tokens, lengths = torch.randint(0, 9, (3, 5)), torch.tensor([5, 2, 3])
    deep, single = SruEncoder(9, 4, 64, layers=2, dropout=0.5), SruEncoder(9, 4, 64, layers=1, dropout=0.5)
    assert not torch.equal(deep(tokens, lengths), deep(tokens, lengths))
    assert torch.equal(single(tokens, lengths), single(tokens, lengths))
    deep.eval()
    assert torch.equal(deep(tokens, lengths), deep(tokens, lengths))


def test_only_where_sizes_differ_the_highway_has_a_map() -> None:
    torch.manual_seed(0)
    first, second = SruEncoder(9, 300, 200, layers=2, bidirectional=True).layers
    assert (first.weight.shape, second.weight.shape) == ((4, 200, 300), (3, 200, 200))
    for layer, words in ((first, 300), (second, 200)):
        for row, scale in enumerate((1.0, 0.5, 0.5, 1.0)[: len(layer.weight)]):
            assert abs(layer.weight[row].var().item() * words / scale - 1) < 0.05
        assert abs(layer.peephole.var().item() - 0.5) < 0.1
        assert not layer.bias.any()


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="embed_dim must be even in a bidirectional encoder, not 5"):
        SruEncoder(9, 4, 5, bidirectional=True)
    with pytest.raises(ValueError, match="layers must be at least 1, not 0"):
        SruEncoder(9, 4, 6, layers=0)
