"""Rows of an encoded caption: its words between <start> and <end>, or the words that its tokens are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossret.data.corpus import PrecomputedCorpus
from crossret.data.scenes.grounding import Grounding
from crossret.data.vocabulary import tokenize, word_spans
from crossret.hyperparameters import ModelConfig
from crossret.models.attention import AttentionMap
from crossret.models.contributions import ScoreShares


@dataclass(frozen=True)
class Rows:
    """Rows of an encoded caption.

    Attributes:
        caption: the caption.
        labels: names of the rows.
        begin, end: from which to behind which row they are words of the caption, not <start> or <end>.
        spans: (rows, 2) the characters of each row's word; None where the caption is read as words, or where it is not
            told which words its tokens are of.
        row_of_token: (W,) int64, the row of each token, as those of one word are one row; None where the caption is
            read as words, which are the rows.
    """

    caption: str
    labels: tuple[str, ...]
    begin: int
    end: int
    spans: NDArray[np.int64] | None = None
    row_of_token: NDArray[np.int64] | None = None

    @staticmethod
    def of(config: ModelConfig, caption: str, tokens: int, spans: NDArray[np.int32] | None) -> Rows:
        """Rows of a caption that a model of this config has read.

        Args:
            config: the model's.
            caption: the caption.
            tokens: how many tokens the model has read of it; asked only where it reads such and ``spans`` are None.
            spans: (W, 2), as ``PrecomputedCorpus.spans`` has them.
        """
        if config.text_dim is None:
            return Rows.of_words(caption, tokenize(caption)[: config.max_words])
        if spans is None:
            labels = tuple(f"token {number}" for number in range(1, tokens + 1))
            return Rows(caption, labels, 0, tokens, None, np.arange(tokens))
        own = spans[: config.max_words].astype(np.int64)
        begins = np.ones(len(own), np.bool_)
        begins[1:] = (own[1:] != own[:-1]).any(1) | (own[1:, 1] == 0)  # a token of no word is alone
        words = own[begins]
        labels = tuple(caption[start:end].strip() or f"token {row}" for row, (start, end) in enumerate(words, start=1))
        return Rows(caption, labels, 0, len(labels), words, begins.cumsum() - 1)

    @staticmethod
    def of_words(caption: str, words: Sequence[str]) -> Rows:
        """Rows of a caption that is read as these words."""
        return Rows(caption, ("<start>", *words, "<end>"), 1, len(words) + 1)

    @staticmethod
    def of_corpus(config: ModelConfig, corpus: PrecomputedCorpus, lengths: Tensor, caption: int) -> Rows:
        """Rows of a split's caption; a model of this config has encoded the split's captions at these lengths."""
        return Rows.of(config, corpus.data.captions[caption], int(lengths[caption]), corpus.spans(caption))

    @property
    def words(self) -> tuple[str, ...]:
        """The caption's words."""
        return self.labels[self.begin : self.end]

    def objects(self, truth: Grounding) -> dict[int, NDArray[np.float32]]:
        """The boxes of what the caption's words name, by row; of words that are not read there are none.

        Raises:
            ValueError: it is not told which words the tokens are of.
        """
        if self.row_of_token is None:
            return {self.begin + place: box for place, box in truth.objects.items() if self.begin + place < self.end}
        if self.spans is None:
            raise ValueError(f"{self.caption!r}: of which words its tokens are is not told: there is no spans.npy")
        places = word_spans(self.caption)
        found: dict[int, NDArray[np.float32]] = {}
        for place, box in truth.objects.items():
            start, end = places[place]
            over = np.flatnonzero((self.spans[:, 0] < end) & (self.spans[:, 1] > start))
            found |= {int(row): box for row in over[:1]}
        return found

    def first_token(self, row: int) -> int:
        """The first row of the encoded caption that is of this row's word."""
        return row if self.row_of_token is None else int(np.searchsorted(self.row_of_token, row))

    def merged(self, maps: Sequence[AttentionMap]) -> tuple[AttentionMap, ...]:
        """Maps of this caption beside one image, or some, in which tokens of one word are one: it looks where they look
        on average, and has all of what is spread over words.
        """
        if self.row_of_token is None:
            return tuple(maps)
        made = []
        for each in maps:
            if each.queries is None:
                relevances = None if each.relevances is None else self._joined(each.relevances, mean=True)
                weights = self._joined(each.weights, mean=each.name != "i2t")
                made.append(replace(each, weights=weights, relevances=relevances))
            elif each.word_weights is not None:
                made.append(replace(each, word_weights=self._joined(each.word_weights.mT, mean=False).mT))
            else:
                made.append(each)
        return tuple(made)

    def merged_shares(self, shares: ScoreShares | None) -> ScoreShares | None:
        """Shares of the score in which the tokens of a word bring what they bring together."""
        if shares is None or self.row_of_token is None:
            return shares
        parts = [
            replace(
                part,
                values=self._joined(part.values, mean=False),
                relevances=self._joined(part.relevances, mean=True),
            )
            if part.items == "words"
            else part
            for part in shares.parts
        ]
        return ScoreShares.adding_up(shares.scores, tuple(parts))

    def _joined(self, tokens: Tensor, *, mean: bool) -> Tensor:
        """(P, W, …) to (P, rows, …), sums or means of the tokens of each row; W may have padding."""
        assert self.row_of_token is not None
        row_of = torch.from_numpy(self.row_of_token).to(tokens.device)
        own = tokens[:, : len(row_of)]
        made = own.new_zeros(len(own), len(self.labels), *own.shape[2:]).index_add_(1, row_of, own)
        if not mean:
            return made
        counts = torch.bincount(row_of, minlength=len(self.labels)).to(made.dtype)
        return made / counts.reshape(-1, *[1] * (made.dim() - 2))
