"""The command that cuts a corpus of features for several machines: `shard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.options import NewDirectory, option
from crossret.cli.output import say


def shard(
    corpus: Annotated[
        Path,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Features: features.npy and perhaps lengths.npy, or values.npy and offsets.npy; or one side of "
            "what `encode` wrote.",
        ),
    ],
    output: NewDirectory,
    shards: Annotated[int, option("How many directories to cut it into.", min=1, max=10_000)],
) -> None:
    """Cut a corpus of features into shards that `search` reads as one corpus.

    Every shard is a directory of features of its own, with successive items, about
    as many rows in each; shards.json lists them. A machine needs only the list and
    the shards that it searches, at the same path as on the others. Features that
    are in several directories already need no copy: write such a list yourself.
    Of what a model encoded shards have all that it scores, for `search` with the model.

    \b
    Examples:
      crossret shard embeddings/images --output corpus --shards 16
      crossret search corpus --queries queries.npy --sum-max --ray auto
    """
    from crossret.search.sharding import cut_corpus
    from crossret.terminal import progress_bar

    with progress_bar("cutting") as progress:
        sizes = cut_corpus(corpus, output, shards=shards, progress=progress)
    say(f"{output}: {sum(sizes):,} items in {len(sizes):,} shards of {min(sizes):,} to {max(sizes):,}")
