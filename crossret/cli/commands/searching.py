"""The command that retrieves: `search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.candidate_option import CandidateOption
from crossret.cli.errors import refuse
from crossret.cli.options import (
    RUN,
    Device,
    QueryLengths,
    RegionLengths,
    Threads,
    WordLengths,
    file_to_read,
    file_to_write,
    option,
    use_threads,
)
from crossret.cli.score_options import ScoreOptions, with_score_options


@with_score_options
def search(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] CORPUS | INDEX [TEXT]...",
            help="INDEX: what `index` made; TEXT: what to find in it, texts in place of --caption. "
            f"RUN: {RUN} CORPUS: features.npy (items, length, dimensions) and perhaps lengths.npy, or values.npy "
            "(rows, dimensions) and offsets.npy (items + 1); shards of such, as `shard` writes them; what `encode` "
            "wrote, of one side or both; or, with RUN, data in the precomputed-feature format.",
        ),
    ],
    split: Annotated[str | None, option("Which SPLIT_ims.npy and SPLIT_caps.txt; by default test.")] = None,
    caption: Annotated[
        list[str] | None, option("Find images for this text; may be repeated.", metavar="<text>")
    ] = None,
    captions: Annotated[Path | None, file_to_read("Find images for every line of this file.")] = None,
    image: Annotated[
        list[int] | None,
        option("Find captions for this image of the corpus, numbered from 0; may be repeated.", metavar="<int>"),
    ] = None,
    queries: Annotated[
        Path | None,
        option("Find documents for these (queries, rows, dimensions), .npy, or a directory as CORPUS.", exists=True),
    ] = None,
    query_lengths: QueryLengths = None,
    words: Annotated[Path | None, option("As --queries, which are captions: find images.", exists=True)] = None,
    word_lengths: WordLengths = None,
    regions: Annotated[Path | None, option("As --queries, which are images: find captions.", exists=True)] = None,
    region_lengths: RegionLengths = None,
    candidates: Annotated[
        str | None,
        option(
            "Score and sort these alone: items of CORPUS for each query (queries, K), .npy of integers, -1 for none; "
            "or what --output wrote of an earlier search; or faiss, those that an index of one vector an item finds, "
            "of fixed-dimensional encodings (MUVERA); or faiss-mean, of means.",
            metavar="<file>|faiss|faiss-mean",
        ),
    ] = None,
    n_candidates: Annotated[
        int | None, option("How many faiss finds for each query; by default 20 for each of -k, 200 at least.", min=1)
    ] = None,
    k: Annotated[int, option("How many to find for each query.", "-k", min=1)] = 10,
    output: Annotated[Path | None, file_to_write("Also write a JSON object a query to this file.")] = None,
    sheet: Annotated[
        Path | None, file_to_write("Of an index: also draw the pictures found, a row a query, into this .png.")
    ] = None,
    html: Annotated[
        Path | None, file_to_write("Of an index: also write a page that shows why these pictures were found.")
    ] = None,
    *,
    scoring: ScoreOptions,
    ray: Annotated[
        str | None,
        option(
            "Search features on every node of this Ray cluster: HOST:PORT; auto, the one that this machine is in; or "
            "local, one for this search. --threads is then each task's, by default all CPUs of the smallest node.",
            metavar="<address>",
        ),
    ] = None,
    threads: Threads = None,
    device: Device = None,
    text_encoder: Annotated[
        str | None,
        option("Where the encoder is whose tokens of captions the model was trained on; by default where it was."),
    ] = None,
) -> None:
    """Find the best images for captions, captions for images, or documents for queries.

    With INDEX: pictures by text. --sheet draws them, --html explains them: which parts
    of a picture each word is like, and what the score is made of.

    With a model, RUN: text, images by their numbers, or what the model encoded, against
    a split of data or what it encoded. Without: features against a directory of
    features, by the other options' score. Either side may be larger than memory.

    Documents and queries are what any encoder made of them. --queries stand where
    captions do, the corpus where images do: --direction q2d is then t2i, and d2q is
    i2t. With --regions, or --queries that are encoded images, it is the other way.

    With --candidates each query is scored with its own alone, as a second stage. Those
    of faiss are the items whose vectors have the largest inner products, which
    estimate Sum-Max in direction q2d: exact scores order them, but items of a high
    score may be missing. The index is kept in the user's cache. It needs
    pip install 'crossret[faiss]'. A file of this name is ./faiss.

    With --ray what is found is the same; nodes search the shards that they hold, and
    what a lost one was at is done by others. It needs pip install 'crossret[ray]'.
    Prints the results of the first queries, and writes those of all with --output.

    \b
    Examples:
      crossret search album "a red kite above the beach" --sheet found.png
      crossret search album "a red kite above the beach" -k 5 --html why.html
      crossret search runs/first scenes --caption "a red ball left of a box"
      crossret search runs/f30k data/f30k_precomp --captions queries.txt -k 5 --output results.jsonl
      crossret search runs/first scenes --image 7 --image 12
      crossret search runs/first embeddings --caption "a small red circle"
      crossret search runs/first embeddings --words embeddings --output found.jsonl
      crossret search runs/first embeddings --words embeddings --candidates found.jsonl -k 5
      crossret search embeddings/images --words embeddings/captions -k 5 --output results.jsonl
      crossret search corpus --queries queries.npy --query-lengths lengths.npy --sum-max --direction q2d --normalize
      crossret search corpus --queries queries.npy --sum-max --candidates candidates.npy -k 5
      crossret search corpus --queries queries.npy --sum-max --direction q2d --candidates faiss
      crossret search corpus --queries queries.npy --sum-max --ray 10.0.0.1:6379
    """
    from crossret.cli.commands.searches import Asked, Files, How, directories, of_features, of_index, of_model
    from crossret.picture_index.files import is_index

    use_threads(threads)
    *runs, corpus = directories(places)
    asked = Asked(
        {"caption": caption, "captions": captions, "image": image},
        {"queries": queries, "words": words, "regions": regions},
        {"query_lengths": query_lengths, "word_lengths": word_lengths, "region_lengths": region_lengths},
    )
    how = How(scoring, CandidateOption.of(candidates, n_candidates, k), split, ray, threads, device, text_encoder)
    files = Files(output, sheet, html)
    files.check(captions, how.candidates.path, *runs, corpus, *asked.stored.values(), *asked.lengths.values())
    if not runs and is_index(corpus):
        wanted = of_index(corpus, places[1:], asked, how)
    else:
        refuse({"sheet": sheet, "html": html}, "is for an index of pictures")
        wanted = of_model(runs[0], corpus, asked, how) if runs else of_features(corpus, asked, how)
    which = "searched" if candidates is None else "of which each query's candidates were scored"
    title = f"{wanted.name}: {len(wanted.corpus):,} {wanted.item}s {which}"
    files.write(wanted, wanted.found(k, how), title)
