"""An embedding that starts from word vectors that others trained."""

from __future__ import annotations

import os

import torch
from torch import nn

from crossret.data.vocabulary import Vocabulary
from crossret.data.word_vectors.reading import read_word_vectors


def start_from_word_vectors(embedding: nn.Embedding, vocabulary: Vocabulary, path: str | os.PathLike[str]) -> int:
    """Copy the vectors that a file has of the vocabulary's words into an embedding; the others stay as they are.

    Args:
        embedding: one row a word of the vocabulary.
        path: as ``read_word_vectors``.

    Returns:
        How many words were found.

    Raises:
        OSError: as ``read_word_vectors``.
        ValueError: as ``read_word_vectors``, or the sizes do not agree; names both.
    """
    if embedding.num_embeddings != len(vocabulary):
        raise ValueError(f"embedding has {embedding.num_embeddings} rows, but vocabulary {len(vocabulary)} words")
    vectors, found = read_word_vectors(path, vocabulary.idx2word)
    if vectors.shape[1] != embedding.embedding_dim:
        raise ValueError(
            f"{path}: vectors have {vectors.shape[1]} dimensions, but word_dim is {embedding.embedding_dim}"
        )
    with torch.no_grad():
        embedding.weight[torch.from_numpy(found)] = torch.from_numpy(vectors).to(embedding.weight)
    return len(found)
