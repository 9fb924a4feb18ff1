"""Word numbers: checked, embedded, and packed so that nothing is computed on padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def check_tokens(tokens: Tensor, vocabulary_size: int) -> None:
    """Raise where ``tokens`` is not (n, W) int64 of numbers below ``vocabulary_size``; a ValueError names the place."""
    if tokens.dtype != torch.int64:
        raise TypeError(f"tokens must be int64, got {tokens.dtype}")
    if tokens.dim() != 2:
        raise ValueError(f"tokens must have shape (n, W), got {tuple(tokens.shape)}")
    wrong = (tokens < 0) | (tokens >= vocabulary_size)
    if bool(wrong.any()):
        caption, word = (int(index) for index in wrong.nonzero()[0])
        number = int(tokens[caption, word])
        raise ValueError(f"tokens[{caption}, {word}] is {number}, not in the vocabulary of {vocabulary_size} words")


def first_words(tokens: Tensor, lengths: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Captions cut to their first ``most`` words, between the first and the last number, <start> and <end>, that stay.

    Args:
        tokens: (n, W) int64.
        lengths: (n,) int64, each in 1..W, <start> and <end> included.

    Returns:
        (n, at most ``most`` + 2) int64 and (n,) int64.
    """
    kept = lengths.clamp(max=most + 2)
    ends = tokens.gather(1, lengths[:, None] - 1)
    return tokens[:, : most + 2].scatter(1, kept[:, None] - 1, ends), kept


def word_embedding(vocabulary_size: int, word_dim: int) -> nn.Embedding:
    """An embedding that starts uniform in (-0.1, 0.1), as SCAN's."""
    embedding = nn.Embedding(vocabulary_size, word_dim)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    return embedding


def pack(tokens: Tensor, lengths: Tensor) -> PackedSequence:
    """Words in order of time: the first words of all captions, the longest caption first, then all second words.

    Args:
        tokens: (n, W) int64; what lies behind a caption's length is left out.
        lengths: (n,) int64, each in 1..W.
    """
    return pack_padded_sequence(tokens, lengths.cpu(), batch_first=True, enforce_sorted=False)


def with_data(packed: PackedSequence, data: Tensor) -> PackedSequence:
    """Other contents (rows, …) at the same places."""
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


def pad(packed: PackedSequence) -> Tensor:
    """(n, longest length, …), captions in their own order, zero behind each one's length."""
    padded, _ = pad_packed_sequence(packed, batch_first=True)
    return padded


def word_mask(lengths: Tensor) -> Tensor:
    """(n, longest length) bool, True where a caption has a word; lengths (n,) int64."""
    return torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]


def scatter_words(words: Tensor, mask: Tensor) -> Tensor:
    """Words (rows, D), caption after caption, to (n, W, D), zero where ``mask`` (n, W) has no word."""
    return words.new_zeros(*mask.shape, words.shape[-1]).index_put((mask,), words)
