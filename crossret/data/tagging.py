"""Parts of speech of captions, from a spaCy model: the extra ``pos``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

DEFAULT_MODEL = "en_core_web_sm"

Tagger = Callable[[Iterable[list[str]]], Iterator[list[str]]]
"""Tokenized captions in, the Universal POS tags of their words out, in the same order."""


def load_tagger(model: str = DEFAULT_MODEL) -> Tagger:
    """A tagger of captions that are parted into words already, so that tags and words align.

    Args:
        model: a spaCy model, by the name of its package or the path of its directory.

    Raises:
        ValueError: spaCy is not installed or cannot load the model (says what to install), or, when captions are
            tagged, the model gives no parts of speech.
    """
    try:
        import spacy
    except ModuleNotFoundError as error:
        if error.name != "spacy":
            raise
        raise ValueError("parts of speech need spaCy; install the extra 'pos': pip install 'crossret[pos]'") from error
    try:
        pipeline = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])  # which tags do not depend on
    except OSError as error:
        raise ValueError(
            f"spaCy cannot load the model {model!r}; to install one: python -m spacy download {DEFAULT_MODEL} ({error})"
        ) from error

    def tag(captions: Iterable[list[str]]) -> Iterator[list[str]]:
        for doc in pipeline.pipe(spacy.tokens.Doc(pipeline.vocab, words=words) for words in captions):
            if not doc.has_annotation("POS"):
                raise ValueError(f"the spaCy model {model!r} gives no parts of speech")
            yield [token.pos_ for token in doc]

    return tag
