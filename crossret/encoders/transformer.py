"""Words by a transformer, the alternative to the GRU in HAN's Table 7."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossret.encoders.tokens import scatter_words, word_embedding, word_mask


class TransformerEncoder(nn.Module):
    """Word embedding, learned positions and self-attention blocks with the norm after each residual, as BERT's.

    Embedded words pass a linear layer to ``embed_dim``; positions are added, then LayerNorm and dropout. A block is
    multi-head self-attention and a feed-forward layer of 4 * embed_dim with GELU, each with dropout, residual and
    LayerNorm. Only attention sees the padding, masked; everything else runs on the words alone. Weights and positions
    start from N(0, 0.02²) as BERT's, biases from zero, ``embed.weight`` uniform in (-0.1, 0.1) as other encoders'.

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
        self.blocks = nn.ModuleList(_Block(embed_dim, heads, dropout) for _ in range(layers))
        nn.init.normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

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
        position = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)[mask]
        words = self.fc(self.embed(tokens[:, : mask.shape[1]][mask])) + self.positions[position]
        words = self.dropout(self.norm(words))
        for block in self.blocks:
            words = block(words, mask)
        return scatter_words(words, mask)


class _Block(nn.Module):
    """Self-attention and feed-forward layer, each followed by residual and LayerNorm."""

    def __init__(self, embed_dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.expand = nn.Linear(embed_dim, 4 * embed_dim)
        self.contract = nn.Linear(4 * embed_dim, embed_dim)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """(rows, D) words of the captions whose places ``mask`` (n, W) shows → the same shape."""
        padded = scatter_words(self.query_key_value(words), mask)
        query, key, value = padded.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None, None], dropout_p=self.dropout if self.training else 0.0
        )
        attended = self.output(attended.transpose(1, 2).flatten(2)[mask])
        words = self.attention_norm(words + self._drop(attended))
        contracted = self.contract(functional.gelu(self.expand(words)))
        return self.feed_forward_norm(words + self._drop(contracted))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)
