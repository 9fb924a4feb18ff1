"""Words by stacked simple recurrent units, MHSAN's text encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossret.encoders.sru_recurrence import sru_recurrence
from crossret.encoders.tokens import pack, pad, with_data, word_embedding


class SruEncoder(nn.Module):
    """Word embedding and layers of simple recurrent units in the full peephole form (MHSAN §3.2; Lei et al., 2018).

    Bidirectional, either direction has half of the ``embed_dim`` states, forward ones first. Dropout zeroes entries of
    the words between two layers, each on its own.

    Parameters: ``embed.weight``, uniform in (-0.1, 0.1), and those of ``layers.{i}``: see ``SruLayer``.

    Args:
        vocabulary_size: number of words.
        word_dim: length of a word's embedding (MHSAN: 620).
        embed_dim: length D of a word's encoding (MHSAN: 2400).
        layers: number of layers.
        bidirectional: whether half of the states read the caption from its end.
        dropout: probability of zeroing between layers in training.

    Raises:
        ValueError: ``layers`` is less than 1, ``embed_dim`` is odd in a bidirectional encoder, or ``dropout`` is not in
            0..1.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int,
        embed_dim: int,
        *,
        layers: int = 4,
        bidirectional: bool = False,
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1, not {layers}")
        if bidirectional and embed_dim % 2:
            raise ValueError(f"embed_dim must be even in a bidirectional encoder, not {embed_dim}")
        self.embed = word_embedding(vocabulary_size, word_dim)
        self.layers = nn.ModuleList(
            SruLayer(embed_dim if layer else word_dim, embed_dim, bidirectional=bidirectional)
            for layer in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each word in the context of its caption.

        Args:
            tokens: (n, W) int64 word numbers; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim), zero behind each caption's length.
        """
        packed = pack(tokens, lengths)
        words = self.embed(packed.data)
        for number, layer in enumerate(self.layers):
            words = layer(self.dropout(words) if number else words, packed.batch_sizes)
        return pad(with_data(packed, words))


class SruLayer(nn.Module):
    """One layer over packed words: a single product for all of them, then the recurrence.

    Where input and state differ in length, the highway takes a fourth linear map of the input, and the input itself
    where they agree; of two directions, the state is what they are together, as in Lei et al.'s code.

    Parameters: ``weight`` (3 or 4, state, input), W, W_f, W_r and the highway's; ``peephole`` (2, state), v_f and v_r;
    ``bias`` (2, state), b_f and b_r. Initial values follow the reasoning of Lei et al. §3.3: uniform weights of
    variance 1 / input keep a word's variance; those of the gates and the peepholes are scaled by √½, so that the two
    terms of a gate's logit have variance 1 together. Biases are zero, also the forget gates'. Their code's rescaling of
    the highway by √3 is left out, as it is no part of the equations that we build.
    """

    def __init__(self, input_dim: int, state_dim: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        maps = 3 if input_dim == state_dim else 4
        self.weight = nn.Parameter(torch.empty(maps, state_dim, input_dim))
        self.peephole = nn.Parameter(torch.empty(2, state_dim))
        self.bias = nn.Parameter(torch.zeros(2, state_dim))
        bound = (3 / input_dim) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.peephole, -(1.5**0.5), 1.5**0.5)
        with torch.no_grad():
            self.weight[1:3] *= 0.5**0.5

    def forward(self, words: Tensor, batch_sizes: Tensor) -> Tensor:
        """(rows, input) packed words → (rows, state); ``batch_sizes`` as a PackedSequence has them."""
        maps = len(self.weight)
        bias = functional.pad(self.bias, (0, 0, 1, maps - 3))
        products = functional.linear(words, self.weight.flatten(0, 1), bias.flatten()).unflatten(-1, (maps, -1))
        highway = words
        if maps == 4:
            products, last = products.split([3, 1], dim=1)
            highway = last.squeeze(1)
        return sru_recurrence(products, highway, self.peephole, batch_sizes, bidirectional=self.bidirectional)
