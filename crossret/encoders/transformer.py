"""Words by a transformer, the alternative to the GRU in HAN's Table 7."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossret.encoders.tokens import scatter_words, word_embedding, word_mask


class TransformerEncoder(nn.Module):
    """Word embedding, learned positions and ``nn.TransformerEncoder`` with the norm after each residual, as BERT's.

    Embedded words pass a linear layer to ``embed_dim``; positions are added, then LayerNorm and dropout. The
    feed-forward layers are of 4 * embed_dim with GELU. Weights and positions start from N(0, 0.02²) as BERT's, biases
    from zero, ``embed.weight`` uniform in (-0.1, 0.1) as other encoders'.

    Args:
        vocabulary_size: number of words.
        word_dim: length of a word's embedding.
        embed_dim: length D of a word's encoding.
        layers: number of blocks (HAN: 12).
        heads: attention heads of a block; they divide ``embed_dim``.
        dropout: probability of zeroing in training, also of attention weights.
        longest: words of the longest caption that can be encoded, the number of positions.

    Raises:
        ValueError: ``embed_dim`` is not a multiple of ``heads``.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int,
        embed_dim: int,
        *,
        layers: int,
        heads: int,
        dropout: float,
        longest: int,
    ) -> None:
        super().__init__()
        if embed_dim % heads:
            raise ValueError(f"embed_dim must be a multiple of heads, got {embed_dim} and {heads}")
        self.longest = longest
        self.embed = word_embedding(vocabulary_size, word_dim)
        self.fc = nn.Linear(word_dim, embed_dim)
        self.positions = nn.Parameter(torch.empty(longest, embed_dim))
        self.norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(embed_dim, heads, 4 * embed_dim, dropout, "gelu", batch_first=True)
        layer.dropout.p = 0.0  # BERT has none within the feed-forward layer
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        nn.init.normal_(self.positions, std=0.02)
        for name, parameter in (*self.fc.named_parameters(), *self.blocks.named_parameters()):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each word in the context of its caption.

        Args:
            tokens: (n, W) int64 word numbers; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim), zero behind each caption's length.

        Raises:
            ValueError: a caption has more than ``longest`` words; names it.
        """
        mask = word_mask(lengths)
        if mask.shape[1] > self.longest:
            caption = int(lengths.argmax())
            raise ValueError(f"lengths[{caption}] is {mask.shape[1]}, more than the {self.longest} positions")
        words = scatter_words(self.embed(tokens[:, : mask.shape[1]][mask]), mask)
        words = self.dropout(self.norm(self.fc(words) + self.positions[: mask.shape[1]]))
        encoded: Tensor = self.blocks(words, src_key_padding_mask=~mask)
        return encoded.masked_fill(~mask[:, :, None], 0)
