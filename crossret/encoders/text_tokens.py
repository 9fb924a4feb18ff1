"""Tokens of captions that a pretrained encoder made: a linear layer, in the place of an embedding and a GRU."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from crossret.encoders.linear import xavier_linear
from crossret.encoders.normalize import l2_normalize
from crossret.encoders.tokens import scatter_words, word_mask


class TokenEncoder(nn.Module):
    """A linear layer, each token on its own: the encoder that made them has read their caption.

    Parameters: ``fc.weight`` (Xavier uniform), ``fc.bias`` (zero).

    Args:
        text_dim: length of a token.
        embed_dim: length D of its embedding.
        normalize: whether every embedded token gets length 1.
        activation: "none", or "tanh" of the linear layer's output.
        dropout: probability with which an entry of a token is zeroed in training.
    """

    def __init__(
        self,
        text_dim: int,
        embed_dim: int,
        *,
        normalize: bool = False,
        activation: Literal["none", "tanh"] = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.fc = xavier_linear(text_dim, embed_dim)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Embed each token.

        Args:
            tokens: (n, W, text_dim) float; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim), zero behind each caption's length.
        """
        mask = word_mask(lengths)
        words: Tensor = self.fc(self.dropout(tokens[:, : mask.shape[1]][mask]))
        if self.activation == "tanh":
            words = words.tanh()
        return scatter_words(l2_normalize(words) if self.normalize else words, mask)
