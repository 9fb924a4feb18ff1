"""Words by convolutions over n-grams, OAN's text encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossret.encoders.tokens import scatter_words, word_embedding, word_mask


class NgramEncoder(nn.Module):
    """Word embedding, 1-D convolutions of several widths, and a linear layer, tanh after both (OAN Eqs. 1, 2).

    Every convolution has ``embed_dim`` channels (the paper does not say how many) and gives each word one vector: a
    word sees (width - 1) // 2 words to its left and width // 2 to its right, zero beyond the ends of its caption. So
    an even width pads the extra zero on the right, and bi-grams are a word and the next one.

    Parameters: ``embed.weight``, uniform in (-0.1, 0.1); ``convolutions.{i}.weight`` (embed_dim, width * word_dim), the
    words of a window one after the other, and ``fc.weight``, Xavier uniform; biases zero.

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
        convolutions = [nn.Linear(width * word_dim, embed_dim) for width in self.widths]
        self.convolutions = nn.ModuleList(convolutions)
        self.fc = nn.Linear(len(self.widths) * embed_dim, embed_dim)
        for width, convolution in zip(self.widths, convolutions, strict=True):
            # Xavier's bound for a convolution counts its window on both sides, as torch does of nn.Conv1d.
            bound = (6 / (width * (word_dim + embed_dim))) ** 0.5
            nn.init.uniform_(convolution.weight, -bound, bound)
            nn.init.zeros_(convolution.bias)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Encode each word with its neighbours.

        Args:
            tokens: (n, W) int64 word numbers; what lies behind a caption's length is ignored.
            lengths: (n,) int64, each in 1..W.

        Returns:
            (n, longest length, embed_dim) in (-1, 1), zero behind each caption's length.
        """
        mask = word_mask(lengths)
        embedded = self.embed(tokens[:, : mask.shape[1]][mask])
        left, right = (max(self.widths) - 1) // 2, max(self.widths) // 2
        windows = _windows(embedded, mask, left, right).flatten(1)
        word_dim = embedded.shape[1]
        grams = []
        # Every width sees the middle of the widest window, so that one gathering serves all products.
        for width, convolution in zip(self.widths, self.convolutions, strict=True):
            first = (left - (width - 1) // 2) * word_dim
            grams.append(convolution(windows[:, first : first + width * word_dim]))
        return scatter_words(self.fc(torch.cat(grams, dim=1).tanh()).tanh(), mask)


def _windows(words: Tensor, mask: Tensor, left: int, right: int) -> Tensor:
    """Each word (rows, d) with its neighbours in its caption, (rows, left + 1 + right, d), zero beyond the ends."""
    rows = len(words)
    # Row of every place of the padded captions, and of `left` and `right` more beside them: none is row number `rows`.
    numbers = torch.full(mask.shape, rows, device=mask.device)
    numbers[mask] = torch.arange(rows, device=mask.device)
    numbers = functional.pad(numbers, (left, right), value=rows)
    neighbours = numbers.unfold(1, left + 1 + right, 1)[mask]
    # A look-up in a table rather than indexing: the gradient of a table is summed in parallel.
    return functional.embedding(neighbours, torch.cat([words, words.new_zeros(1, words.shape[1])]), padding_idx=rows)
