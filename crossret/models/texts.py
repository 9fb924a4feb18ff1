"""New captions as a model reads them: by its vocabulary, its encoder of texts, or the one that made its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crossret.data.batches import ReadCaptions, read_texts
from crossret.data.named_encoder import NamedEncoder
from crossret.data.precomputed import PrecomputedDataset
from crossret.data.vocabulary import Vocabulary
from crossret.extraction.choosing import load_text_encoder
from crossret.extraction.protocol import TextEncoder
from crossret.extraction.resuming import identity
from crossret.models.base import captions_by, text_reader_of
from crossret.models.protocol import Matcher


def reads_texts(model: Matcher, vocabulary: Vocabulary | None) -> bool:
    """Whether a model can read a new caption; others read stored tokens of captions alone."""
    return vocabulary is not None or text_reader_of(model) is not None or captions_by(model) is not None


def new_captions(model: Matcher, captions: Sequence[str], vocabulary: Vocabulary | None) -> ReadCaptions:
    """Captions that no file has tokens of.

    Raises:
        ValueError: the model reads stored tokens, and of which encoder is not known, or that cannot be loaded or makes
            others today.
    """
    read = read_texts(captions, vocabulary, text_reader_of(model))
    if read is not None:
        return read
    named = captions_by(model)
    if named is None:
        raise ValueError(
            f"this {model.kind} reads tokens of captions, and which encoder makes them is not known: train it on what "
            "`crossret extract --text-encoder` writes, or with --text-encoder"
        )
    return _EncodedCaptions(captions, load_named(named))


def check_same_encoder(model: Matcher, data: PrecomputedDataset) -> None:
    """Raise a ValueError where a split's stored tokens are known to be of another encoder than the model's."""
    named, own = captions_by(model), data.words_by
    if named is not None and own is not None and own.identity != named.identity:
        raise ValueError(f"{data.words_name}: tokens by {own.name}, not by {named.name} as it was for the model")


@lru_cache(maxsize=1)
def load_named(named: NamedEncoder) -> TextEncoder:
    """The encoder of texts of a name; a ValueError where there is none, or it is another today."""
    if not named.name:
        raise ValueError(
            "the model reads tokens of an encoder of texts that is not published with it: text_encoder= and "
            "--text-encoder say where it is"
        )
    try:
        encoder = load_text_encoder(named.name)
    except ValueError as error:
        raise ValueError(
            f"{error}; it makes the tokens that the model reads: --text-encoder says where it is"
        ) from error
    if identity(encoder) != named.identity:
        raise ValueError(f"{named.name}: another encoder of texts than the one whose tokens the model was trained on")
    encoder.module.eval()
    return encoder


class _EncodedCaptions:
    """Captions as tokens, made when they are asked for."""

    def __init__(self, captions: Sequence[str], encoder: TextEncoder) -> None:
        self._captions = captions
        self._encoder = encoder
        self.dim = encoder.dim

    def padded(self, captions: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Tokens of some captions (b, W, text_dim) float32, zero behind their lengths (b,)."""
        with torch.inference_mode():
            tokens = self._encoder.encode_texts([self._captions[caption] for caption in captions])
            rows = tokens.values.float().cpu().split(tokens.lengths)
            return pad_sequence(list(rows), batch_first=True), torch.tensor(tokens.lengths)

    def spans(self, caption: int) -> NDArray[np.int32] | None:
        """Spans of a caption's tokens: see ``ReadCaptions.spans``."""
        with torch.inference_mode():
            return self._encoder.encode_texts([self._captions[caption]]).spans
