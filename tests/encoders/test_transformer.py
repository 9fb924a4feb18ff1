"""The transformer: values caption by caption in float64, without padding; first values, dropout, mistakes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from crossret.encoders import TransformerEncoder
from tests.kernels.strategies import examples


def build(**changes: float) -> TransformerEncoder:
    return TransformerEncoder(9, 4, 6, **{"layers": 2, "heads": 3, "dropout": 0.0, "longest": 8, **changes})  # type: ignore[arg-type]


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4), seed=st.integers(0, 1000))
@examples(10)
def test_words_are_encoded_as_without_padding(lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    encoder = build()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    tokens = torch.randint(0, 9, (len(lengths), max(lengths) + 1))
    encoded = encoder(tokens, torch.tensor(lengths))
    exact = build().double()
    exact.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        for item, length in enumerate(lengths):
            words = exact.norm(exact.fc(exact.embed(tokens[item, :length])) + exact.positions[:length])
            expected = exact.blocks(words[None])[0]  # alone, without padding
            torch.testing.assert_close(encoded[item, :length].double(), expected, rtol=1e-4, atol=1e-5)
            assert not encoded[item, length:].any()


def test_every_parameter_learns_and_padding_is_never_read() -> None:
    encoder = build()
    tokens, lengths = torch.randint(0, 9, (3, 6)), torch.tensor([2, 5, 4])
    encoded = encoder(tokens, lengths)
    changed = tokens.clone()
    changed[0, 2:], changed[2, 4:], changed[:, 5:] = 10**9, -1, -1
    assert torch.equal(encoder(changed, lengths), encoded)
    (encoded**3).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_parameters_start_as_bert_s_and_every_layer_by_itself() -> None:
    encoder = TransformerEncoder(9, 40, 60, layers=2, heads=3, dropout=0.0, longest=8)
    for name, parameter in encoder.named_parameters():
        if "norm" in name or name == "embed.weight":
            continue
        assert parameter.std(correction=0).item() == pytest.approx(0.0 if parameter.dim() == 1 else 0.02, rel=0.2), name
    first, second = (layer.linear1.weight for layer in encoder.blocks.layers)
    assert not torch.equal(first, second)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"lengths\[1\] is 9, more than the 8 positions"):
        build()(torch.zeros(2, 9, dtype=torch.int64), torch.tensor([3, 9]))
    with pytest.raises(ValueError, match="embed_dim must be a multiple of heads, got 6 and 4"):
        build(heads=4)
