"""Words by a recurrent network: the GRU of SCAN, HAN and VSE++, SMAN's LSTM."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from crossret.encoders.normalize import l2_normalize
from crossret.encoders.tokens import pack, pad, with_data
from crossret_kernels.extending import choose

_CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}
# PyTorch's LSTM on CPUs computes in bfloat16 by AVX-512, and without it fails under autocast.
_LSTM_HAS_BFLOAT16 = "AVX512" in torch.backends.cpu.get_cpu_capability()


class WordEncoder(nn.Module):
    """Word embedding and GRU or LSTM (SCAN Eqs. 14-16, HAN §3.1, SMAN Eq. 1), L2-normalised if ``normalize``.

    The two directions of a bidirectional network are averaged.

    Parameters: ``embed.weight``, uniform in (-0.1, 0.1), and torch's names and initial values under ``rnn``, as in
    SCAN's published checkpoints.

    Args:
        vocabulary_size: number of words.
        word_dim: length of a word's embedding, the network's input.
        embed_dim: length D of a word's encoding, the network's state.
        bidirectional: whether the network also reads the caption from its end.
        normalize: whether every encoded word gets length 1.
        cell: "gru" or "lstm".
        dropout: probability with which an entry of an embedded word is zeroed in training (SMAN: 0.3).
        layers: of the network.

    Raises:
        ValueError: ``cell`` is none of these, or ``dropout`` is not in 0..1.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int,
        embed_dim: int,
        *,
        bidirectional: bool = True,
        normalize: bool = True,
        cell: Literal["gru", "lstm"] = "gru",
        dropout: float = 0.0,
        layers: int = 1,
    ) -> None:
        super().__init__()
        choose("cell", cell, tuple(_CELLS))
        self.normalize = normalize
        # The embedding is drawn after the network: so were those of runs recorded with their seeds.
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.rnn = _CELLS[cell](word_dim, embed_dim, layers, batch_first=True, bidirectional=bidirectional)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each word in the context of its caption.

        Args:
            tokens: (n, W) int64 word numbers; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim), zero behind each caption's length.
        """
        packed = pack(tokens, lengths)
        # Everything but the network works word by word, so it runs on the packed words and never on padding.
        states = self._read(with_data(packed, self.dropout(self.embed(packed.data))))
        words = states.data
        if self.rnn.bidirectional:
            forward, backward = words.chunk(2, dim=-1)
            words = (forward + backward) / 2
        return pad(with_data(states, l2_normalize(words) if self.normalize else words))

    def _read(self, words: PackedSequence) -> PackedSequence:
        if isinstance(self.rnn, nn.LSTM) and words.data.is_cpu and not _LSTM_HAS_BFLOAT16:
            with torch.autocast("cpu", enabled=False):
                states, _ = self.rnn(words)
        else:
            states, _ = self.rnn(words)
        return states
