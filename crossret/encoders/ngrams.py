"""Words by convolutions over n-grams, OAN's text encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossret.encoders.tokens import scatter_words, word_embedding, word_mask


class NgramEncoder(nn.Module):
    """Word embedding, 1-D convolutions of several widths, and a linear layer, tanh after both (OAN Eqs. 1, 2).

    Every convolution has ``embed_dim`` channels (the paper does not say how many) and gives each word one vector: a
    word sees (width - 1) // 2 words to its left and width // 2 to its right, zero beyond the ends of its caption. So
    an even width pads the extra zero on the right, and bi-grams are a word and the next one.

    Parameters: ``embed.weight``, uniform in (-0.1, 0.1); ``convolutions.{i}.weight`` (embed_dim, word_dim, width) and
    ``fc.weight``, Xavier uniform; biases zero.

    Args:
        vocabulary_size: number of words.
        word_dim: length of a word's embedding.
        embed_dim: length D of a word's encoding.
        widths: words that each convolution sees.

    Raises:
        ValueError: ``widths`` is empty, or one of them is less than 1.
    """

    def __init__(
        self, vocabulary_size: int, word_dim: int, embed_dim: int, *, widths: Sequence[int] = (1, 2, 3, 5, 7)
    ) -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise ValueError(f"widths must be at least one number from 1 up, not {tuple(widths)}")
        self.widths = tuple(widths)
        self.embed = word_embedding(vocabulary_size, word_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(word_dim, embed_dim, width, padding=width // 2) for width in self.widths
        )
        self.fc = nn.Linear(len(self.widths) * embed_dim, embed_dim)
        for layer in (*self.convolutions, self.fc):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each word with its neighbours.

        Args:
            tokens: (n, W) int64 word numbers; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim) in (-1, 1), zero behind each caption's length.
        """
        mask = word_mask(lengths)
        # Zero behind a caption's end, as what a convolution pads with.
        words = scatter_words(self.embed(tokens[:, : mask.shape[1]][mask]), mask).mT
        # An even width makes one more gram, before the first word; padding="same" would copy, and warn of it.
        grams = torch.cat([convolution(words)[:, :, -mask.shape[1] :] for convolution in self.convolutions], dim=1)
        return scatter_words(self.fc(grams.tanh().mT[mask]).tanh(), mask)
