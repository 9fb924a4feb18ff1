"""The command that retrieves: `search`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from crossret.cli.candidate_option import CandidateOption
from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import (
    RUN,
    Device,
    QueryLengths,
    RegionLengths,
    Threads,
    WordLengths,
    file_to_read,
    file_to_write,
    load_model_of,
    load_trained,
    option,
    use_device,
    use_threads,
)
from crossret.cli.score_options import ScoreOptions, with_score_options

if TYPE_CHECKING:
    from torch import Tensor

    from crossret.data import Vocabulary
    from crossret.files.features import StoredItems
    from crossret.files.shards import StoredShards
    from crossret.hyperparameters import ModelConfig
    from crossret.models import Matcher
    from crossret.picture_index import PictureIndex
    from crossret.progress import Progress
    from crossret.search.blocks import Scorer
    from crossret.search.cluster import RayCorpus
    from crossret.search.matching import EncodedSide, Side


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
    from rich.console import Console

    from crossret.files.features import check_output
    from crossret.files.json import write_json_lines
    from crossret.picture_index import PictureIndex
    from crossret.picture_index.files import is_index
    from crossret.terminal import progress_bar, results_table

    use_threads(threads)
    stored = {"queries": queries, "words": words, "regions": regions}
    lengths = {"query_lengths": query_lengths, "word_lengths": word_lengths, "region_lengths": region_lengths}
    typed = {"caption": caption, "captions": captions, "image": image}
    *runs, corpus = _directories(places)
    chosen = CandidateOption.of(candidates, n_candidates, k)
    of_index, index = not runs and is_index(corpus), None
    for written in (output, sheet, html):
        if written is not None:
            check_output(written, captions, chosen.path, *runs, corpus, *stored.values(), *lengths.values())
    if not of_index:
        refuse({"sheet": sheet, "html": html}, "is for an index of pictures")
    if of_index:
        refuse(
            {**asdict(scoring), **stored, **lengths, "ray": ray, "split": split, "image": image}, "is not for an index"
        )
        texts = {"TEXT": places[1:], "caption": caption, "captions": captions}
        asked, given_ = _one_given(texts)
        index = PictureIndex(corpus, device=use_device(device), text_encoder=text_encoder)
        wanted = _of_index(index, asked, given_)
    elif not runs:
        refuse(
            {"split": split, "device": device, "text_encoder": text_encoder, **typed},
            "needs RUN, a model, before CORPUS",
        )
        asked, path = _one_given(stored)
        of_asked = dict(zip(stored, lengths, strict=True))[asked]
        refuse({name: value for name, value in lengths.items() if name != of_asked}, f"is not for --{asked}")
        if ray is not None:
            refuse({"candidates": candidates}, "is for a search by this machine, without --ray")
        wanted = _of_features(scoring, corpus, asked, path, lengths[of_asked])
    else:
        refuse({**asdict(scoring), **lengths, "ray": ray}, "is for a corpus of features, without RUN")
        asked, given_ = _one_given({**typed, **stored})
        wanted = _of_model(runs[0], corpus, split, device, text_encoder, asked, given_)
    with progress_bar("searching") as progress:
        values, indices = wanted.best(k, chosen, ray, threads, progress)
    found = wanted.described(values, indices)
    if output is not None:
        write_json_lines(output, found)
    which = "searched" if candidates is None else "of which each query's candidates were scored"
    if sheet is not None:
        _draw(found, sheet)
    if html is not None and index is not None:
        _explain(index, found, html)
    title = f"{wanted.name}: {wanted.n_items:,} {wanted.item}s {which}"
    Console(emoji=False).print(results_table(found, title, wanted.item))


@dataclass(frozen=True)
class _Search:
    """What is asked of what.

    Attributes:
        scorer, queries, corpus, query: as ``crossret.search.matching.matched`` takes them.
        labels: what is known of each query; None is nothing.
        describe: what is known of an item that was found.
        why_not_finite: why a query has a score with an item that is no finite number.
        name: of the corpus.
        item: what one of its items is called.
        normalize: whether scores are of cosines.
    """

    scorer: Scorer | Matcher
    queries: Side
    corpus: Side
    query: str
    labels: Sequence[dict[str, Any]] | None
    describe: Callable[[int], dict[str, Any]]
    why_not_finite: Callable[[int, int], str]
    name: str
    item: str
    normalize: bool = True

    @property
    def n_items(self) -> int:
        return len(self.corpus)

    def best(
        self, k: int, candidates: CandidateOption, ray: str | None, threads: int | None, progress: Progress
    ) -> tuple[Tensor, Tensor]:
        """(values, indices) of all items or of candidates, by this machine or by a cluster."""
        from crossret.search.reranking import rerank
        from crossret.search.retrieval import retrieve

        options: dict[str, Any] = {"k": k, "query": self.query, "progress": progress}
        if candidates.given is not None:
            rows = candidates.of_queries(self.queries, self.corpus, self.normalize, progress)
            return rerank(self.scorer, self.queries, self.corpus, rows, **options, name=candidates.given)
        if ray is None:
            return retrieve(self.scorer, self.queries, self.corpus, **options)
        queries, corpus = cast("StoredItems", self.queries), cast("StoredShards", self.corpus)
        with _ray_corpus(corpus, ray, threads) as searched:
            return searched.topk(cast("Scorer", self.scorer), queries.features, queries.lengths, **options)

    def described(self, values: Tensor, indices: Tensor) -> list[dict[str, Any]]:
        """Results as they are written and shown."""
        from crossret.search.retrieval import ranked

        labels = [{}] * len(values) if self.labels is None else self.labels
        return ranked(values, indices, labels, self.describe, self.why_not_finite)


def _of_features(scoring: ScoreOptions, directory: Path, asked: str, path: Path, lengths: Path | None) -> _Search:
    from crossret.files.features import StoredItems, why_not_finite
    from crossret.files.shards import StoredShards
    from crossret.search.manifest import IMAGES
    from crossret.search.stored import check_scored_by_rows, side_directory

    side, other = _sides(asked, path, directory)
    path, directory = side_directory(path, side), side_directory(directory, other)
    known = check_scored_by_rows(path, directory)
    corpus, queries = StoredShards.of_directory(directory), StoredItems.of_path(path, lengths)
    query = "image" if side == IMAGES else "caption"
    return _Search(
        scoring.scorer(query),
        queries,
        corpus,
        query,
        None,
        lambda item: {},
        lambda number, item: why_not_finite((queries, number), corpus.stored(item)),
        str(directory),
        other.removesuffix("s") if known or asked != "queries" else "document",
        scoring.normalize,
    )


def _of_model(
    run: Path, directory: Path, split: str | None, device: str | None, text_encoder: str | None, asked: str, given: Any
) -> _Search:
    from crossret.files.features import FEATURES, VALUES
    from crossret.files.shards import SHARDS
    from crossret.models.protocol import evaluating
    from crossret.search.items import encode_texts
    from crossret.search.manifest import CAPTIONS, IMAGES, MODEL
    from crossret.search.sources import EncodedSource, Source, SplitSource
    from crossret.search.stored import WHY_OF_MODEL, StoredEncoded, is_encoded

    source: Source
    if is_encoded(directory):
        refuse({"split": split}, f"is for data, but {directory} holds what a model encoded")
        model, vocabulary = load_model_of(run, device, text_encoder)
        source, name = EncodedSource(model, directory), str(directory)
    elif any((directory / name).is_file() for name in (FEATURES, VALUES, SHARDS)):
        raise ValueError(f"{directory}: features, but no {MODEL} of `encode`: search them without RUN")
    else:
        name = "test" if split is None else split
        model, data = load_trained(run, directory, name, device, text_encoder)
        vocabulary = data.vocabulary
        source = SplitSource(model, data)
    queries: EncodedSide
    labels: list[dict[str, Any]] | None = None
    if asked == "image":
        side, other, queries, labels = IMAGES, CAPTIONS, source.picked(given), [{"image": number} for number in given]
    elif asked in ("caption", "captions"):
        texts = _texts(asked, given, model.config, vocabulary)
        with evaluating(model):
            queries = encode_texts(model, texts, vocabulary)
        side, other, labels = CAPTIONS, IMAGES, [{"caption": text} for text in texts]
    else:
        side, other = _sides(asked, given, directory)
        queries = StoredEncoded.of_directory(given, side)

    def why_not_finite(query: int, item: int) -> str:
        if isinstance(queries, StoredEncoded):
            why = queries.why_not_finite(query)
        else:
            why = source.why_not_finite(side, given[query]) if asked == "image" else None
        return why or source.why_not_finite(other, item) or WHY_OF_MODEL

    corpus, query = source.side(other), "image" if side == IMAGES else "caption"
    item = other.removesuffix("s")
    return _Search(model, queries, corpus, query, labels, source.describe(other), why_not_finite, name, item)


def _of_index(index: PictureIndex, asked: str, given: Any) -> _Search:
    from crossret.data.precomputed import read_captions
    from crossret.files.features import why_not_finite as why_not_finite_features
    from crossret.search.stored import WHY_OF_MODEL, StoredEncoded

    if index.retriever is None:
        texts = read_captions(given) if asked == "captions" else list(given)
    else:
        texts = _texts(asked, given, index.retriever.model.config, index.retriever.vocabulary)
    scorer, queries = index.asked(texts)

    def why_not_finite(query: int, item: int) -> str:
        if isinstance(index.images, StoredEncoded):
            return index.images.why_not_finite(item) or WHY_OF_MODEL
        return why_not_finite_features(index.images.stored(item))

    return _Search(
        scorer,
        queries,
        index.images,
        "caption",
        [{"caption": text} for text in texts],
        lambda item: {"picture": str(index.pictures[item])},
        why_not_finite,
        str(index.directory),
        "picture",
    )


def _draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the pictures that an index has found."""
    from crossret.explain.contact_sheet import SheetRow, draw_sheet

    draw_sheet(
        [
            SheetRow(entry["caption"], [(Path(one["picture"]), one["score"]) for one in entry["results"]])
            for entry in found
        ],
        path,
    )


def _explain(index: PictureIndex, found: Sequence[dict[str, Any]], path: Path) -> None:
    """Explain the pictures that an index has found."""
    from crossret.explain.page.writing import write_page
    from crossret.picture_index.page import index_page
    from crossret.terminal import progress_bar

    rows = [[result["index"] for result in entry["results"]] for entry in found]
    with progress_bar("explaining") as progress:
        page = index_page(index, [entry["caption"] for entry in found], rows, progress=progress)
    write_page(page, path)


def _directories(places: Sequence[str]) -> list[Path]:
    """Those of a search: RUN and CORPUS, or one of them; what follows an index is no directory, but text."""
    from crossret.picture_index.files import is_index

    first = Path(places[0])
    named = [first] if is_index(first) else [Path(place) for place in places]
    for place in named:
        if not place.is_dir():
            raise ValueError(f"{place}: no such directory")
    if len(named) > 2:
        raise ValueError(f"{named[2]}: of directories there are RUN, a model, and CORPUS, no third one")
    return named


def _sides(asked: str, path: Path, directory: Path) -> tuple[str, str]:
    """What the queries of an option are and what is searched: "images" and "captions".

    Of --queries a manifest says it, theirs or the corpus's; else they stand where captions do.
    """
    from crossret.search.manifest import CAPTIONS, IMAGES, MODEL, Manifest
    from crossret.search.sources import OTHER

    if asked != "queries":
        side = CAPTIONS if asked == "words" else IMAGES
    elif (path / MODEL).is_file():
        side = Manifest.read(path).side
    elif (directory / MODEL).is_file():
        side = OTHER[Manifest.read(directory).side]
    else:
        side = CAPTIONS
    return side, OTHER[side]


def _texts(asked: str, given: Any, config: ModelConfig, vocabulary: Vocabulary | None) -> list[str]:
    """The captions to look for; a warning names those of which the model knows no word."""
    from crossret.data.precomputed import check_caption, check_words, read_captions
    from crossret.data.vocabulary import tokenize

    if asked == "captions":
        texts, place = read_captions(given), f"{given}, line"
    else:
        texts, place = given, "TEXT" if asked == "TEXT" else "--caption"
        for number, text in enumerate(texts, start=1):
            check_caption(text, f"{place} {number}")
    check_words(texts, config, place)
    if vocabulary is None:
        return texts
    read = (tokenize(text)[: config.max_words] for text in texts)
    unknown = [number for number, words in enumerate(read, 1) if not any(map(vocabulary.__contains__, words))]
    if unknown:
        others = f", nor of {len(unknown) - 1:,} others" if len(unknown) > 1 else ""
        with warnings_as_lines():
            warnings.warn(f"{place} {unknown[0]}: the model knows no word of it{others}", stacklevel=2)
    return texts


def _ray_corpus(corpus: StoredShards, address: str, threads: int | None) -> RayCorpus:
    try:
        from crossret.search.cluster import RayCorpus
    except ModuleNotFoundError as error:
        raise ValueError(f"--ray needs Ray: pip install 'crossret[ray]' ({error})") from error
    return RayCorpus(corpus, address, threads=threads)


def _one_given(options: dict[str, Any]) -> tuple[str, Any]:
    """The option that was given, by name, and its value; a ValueError unless it is exactly one."""
    found = [(name, value) for name, value in options.items() if value not in (None, [])]
    if len(found) != 1:
        names = (name if name.isupper() else f"--{name}" for name in options)
        raise ValueError(f"exactly one of {', '.join(names)} is needed")
    return found[0]
