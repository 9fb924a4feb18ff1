"""Encoders of regions and words into the space where they are compared."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

EPSILON = 1e-8


def l2_normalize(x: Tensor) -> Tensor:
    """x / ‖x‖ over the last axis, any floating-point shape.

    A vector shorter than 1e-8 (SCAN's eps) counts as zero: its result and its gradient are zero, where plain division
    gives NaN or a gradient of 1e8 that drowns all others.
    """
    squared = x.square().sum(-1, keepdim=True)
    zero = squared < EPSILON**2
    return x * squared.masked_fill(zero, 1).rsqrt().masked_fill(zero, 0)


class RegionEncoder(nn.Module):
    """v_i = W_v f_i + b_v (SCAN Eq. 13), L2-normalised if ``normalize``. Parameters: ``fc.weight``, ``fc.bias``.

    Args:
        image_dim: length of a region's feature.
        embed_dim: length D of its embedding.
        normalize: whether every embedded region gets length 1.
    """

    def __init__(self, image_dim: int, embed_dim: int, *, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = normalize
        self.fc = nn.Linear(image_dim, embed_dim)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(…, image_dim) float → (…, embed_dim)."""
        regions: Tensor = self.fc(features)
        return l2_normalize(regions) if self.normalize else regions


class WordEncoder(nn.Module):
    """Word embedding and GRU (SCAN Eqs. 14-16), L2-normalised if ``normalize``.

    The two directions of a bidirectional GRU are averaged. Parameters: ``embed.weight`` and torch's names under
    ``rnn``, as in SCAN's published checkpoints.

    Args:
        vocabulary_size: number of words.
        word_dim: length of a word's embedding, the GRU's input.
        embed_dim: length D of a word's encoding, the GRU's state.
        bidirectional: whether the GRU also reads the caption from its end.
        normalize: whether every encoded word gets length 1.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int,
        embed_dim: int,
        *,
        bidirectional: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.rnn = nn.GRU(word_dim, embed_dim, batch_first=True, bidirectional=bidirectional)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each word in the context of its caption.

        Args:
            tokens: (n, W) int64 word numbers; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim), zero behind each caption's length.
        """
        packed = pack_padded_sequence(tokens, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # Everything but the GRU works word by word, so it runs on the packed words and never on padding.
        states, _ = self.rnn(_with_data(packed, self.embed(packed.data)))
        words = states.data
        if self.rnn.bidirectional:
            forward, backward = words.chunk(2, dim=-1)
            words = (forward + backward) / 2
        if self.normalize:
            words = l2_normalize(words)
        padded, _ = pad_packed_sequence(_with_data(states, words), batch_first=True)
        return padded


def _with_data(packed: PackedSequence, data: Tensor) -> PackedSequence:
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


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
