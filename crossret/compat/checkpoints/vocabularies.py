"""The vocabularies of published code: SCAN's JSON, and VSE++'s pickles, in which nothing is run."""

from __future__ import annotations

import io
import os
import pickle

from crossret.data.vocabulary import Vocabulary
from crossret.files.pickled import check_pickle
from crossret.files.regular import read_regular

_PICKLE = b"\x80"


class _Words:
    """Stand-in for the class of VSE++'s vocab.py: its attributes, and no code."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Words]:
        if name != "Vocabulary" or module not in ("vocab", "__main__"):  # imported, or vocab.py itself as a program
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a vocabulary")
        return _Words


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """A vocabulary as SCAN's vocab.py writes it, {word2idx, idx2word, idx} as JSON, or as VSE++'s does, pickled.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is neither, asks for more than words and numbers, or is malformed; names the file.
    """
    data = read_regular(path)
    if not data.startswith(_PICKLE):
        return Vocabulary.load(path)
    try:
        file = io.BytesIO(data)
        check_pickle(file, len(data))
        saved = _Unpickler(file, encoding="utf-8").load()  # strings of Python 2 are bytes
    except Exception as error:  # a malformed pickle can raise anything
        raise ValueError(f"{path}: not a readable vocabulary ({error}); nothing of it has been run") from error
    if not isinstance(saved, _Words):
        raise ValueError(f"{path}: not a vocabulary, but a pickled {type(saved).__name__}")
    contents = vars(saved)
    if isinstance(numbers := contents.get("idx2word"), dict):
        contents["idx2word"] = {str(number): word for number, word in numbers.items()}  # as JSON has them
    return Vocabulary.of_contents(contents, path)
