"""The command that perturbs captions to see what a model learns from: `perturb`."""

from __future__ import annotations

from typing import Annotated, Literal

from crossret.cli.options import DataDirectory, NewDirectory, Seed, option
from crossret.cli.output import say

PartOfSpeech = Literal["noun", "verb", "adjective", "preposition", "number"]


def perturb(
    data: DataDirectory,
    output: NewDirectory,
    shuffle: Annotated[bool, option("Put the words of each caption in random order.", "--shuffle")] = False,
    drop: Annotated[
        PartOfSpeech | None, option("Leave out all words of one part of speech, adverbs with adjectives.")
    ] = None,
    seed: Seed = 0,
    split: Annotated[str, option("Whose captions.")] = "train",
    tagger: Annotated[
        str | None,
        option("spaCy model for parts of speech; by default scenes tell theirs, and en_core_web_sm others'."),
    ] = None,
) -> None:
    """Perturb the captions of a data set.

    Writes a data set whose training captions are perturbed and whose rest is as it
    was: what a model trained on it has lost tells what it learns from. Features and
    pictures are links to the old ones. Parts of speech of captions that are not of
    rendered scenes need spaCy: pip install 'crossret[pos]'.

    \b
    Examples:
      crossret perturb scenes --output shuffled --shuffle
      crossret perturb scenes --output without-nouns --drop noun
      crossret perturb f30k_precomp --output without-verbs --drop verb --tagger en_core_web_trf
    """
    from crossret.data.perturbing import perturb_data
    from crossret.terminal import progress_bar

    if shuffle == (drop is not None):
        raise ValueError("of --shuffle and --drop exactly one is needed")
    if shuffle and tagger is not None:
        raise ValueError("--tagger makes no difference to --shuffle: leave it out")
    with progress_bar("perturbing") as progress:
        done = perturb_data(data, output, drop=drop, split=split, seed=seed, tagger=tagger, progress=progress)
    say(
        f"{output}: {done.changed:,} of {done.captions:,} captions of {split} changed; "
        f"{done.kept:,} stayed because nothing of them would have been left"
    )
