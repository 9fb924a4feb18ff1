"""Word vectors that others trained, as a start for an embedding: a reader for each form of files."""

from crossret.data.word_vectors.found import Found
from crossret.data.word_vectors.reading import read_word_vectors
from crossret.data.word_vectors.start import start_from_word_vectors

__all__ = ["Found", "read_word_vectors", "start_from_word_vectors"]
