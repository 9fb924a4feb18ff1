"""Searches that `search` makes: features, what a model encodes, or pictures of an index."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from torch import Tensor

from crossret.cli.candidate_option import CandidateOption
from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import load_model_of, load_trained, use_device
from crossret.cli.score_options import ScoreOptions
from crossret.data.precomputed import check_caption, check_words, read_captions
from crossret.data.vocabulary import Vocabulary, tokenize
from crossret.explain.contact_sheet import SheetRow, draw_sheet
from crossret.explain.page.writing import write_page
from crossret.files.features import FEATURES, VALUES, StoredItems, check_output
from crossret.files.features import why_not_finite as _why_not_finite
from crossret.files.json import write_json_lines
from crossret.files.shards import SHARDS, StoredShards
from crossret.hyperparameters import ModelConfig
from crossret.models.protocol import Matcher, evaluating
from crossret.picture_index import PictureIndex
from crossret.picture_index.files import is_index
from crossret.picture_index.page import index_page
from crossret.search.blocks import Scorer
from crossret.search.items import encode_texts
from crossret.search.manifest import CAPTIONS, IMAGES, MODEL, Manifest
from crossret.search.matching import EncodedSide, Side
from crossret.search.reranking import rerank
from crossret.search.retrieval import ranked, retrieve
from crossret.search.sources import OTHER, EncodedSource, Source, SplitSource
from crossret.search.stored import WHY_OF_MODEL, StoredEncoded, check_scored_by_rows, is_encoded, side_directory
from crossret.terminal import progress_bar, results_table

if TYPE_CHECKING:
    from crossret.search.cluster import RayCorpus


@dataclass(frozen=True)
class Asked:
    """Options of which one names the queries, each by its name.

    Attributes:
        typed: texts, a file of them, and images by their numbers.
        stored: files of features.
        lengths: files of their lengths, in the order of ``stored``.
    """

    typed: dict[str, Any]
    stored: dict[str, Path | None]
    lengths: dict[str, Path | None]


@dataclass(frozen=True)
class How:
    """Options of the score, of candidates, and of where the model and the corpus come from."""

    scoring: ScoreOptions
    candidates: CandidateOption
    split: str | None
    ray: str | None
    threads: int | None
    device: str | None
    text_encoder: str | None


@dataclass(frozen=True)
class Search:
    """Queries, a corpus, and what scores them.

    Attributes:
        scorer, queries, corpus, query: as ``crossret.search.matching.matched`` takes them.
        labels: facts on each query; None is nothing.
        describe: facts on an item that was found.
        why_not_finite: why a query has a score with an item that is no finite number.
        name: of the corpus.
        item: name of one of its items.
        normalize: whether scores are of cosines.
        index: the corpus where it is an index of pictures.
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
    index: PictureIndex | None = None

    def found(self, k: int, how: How) -> list[dict[str, Any]]:
        """The best k of the corpus for every query, as results are written and shown."""
        with progress_bar("searching") as progress:
            values, indices = self._best(how, {"k": k, "query": self.query, "progress": progress})
        labels = [{}] * len(values) if self.labels is None else self.labels
        return ranked(values, indices, labels, self.describe, self.why_not_finite)

    def _best(self, how: How, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(values, indices) of all items or of candidates, by this machine or by a cluster."""
        if how.candidates.given is not None:
            rows = how.candidates.of_queries(self.queries, self.corpus, self.normalize, options["progress"])
            return rerank(self.scorer, self.queries, self.corpus, rows, **options, name=how.candidates.given)
        if how.ray is None:
            return retrieve(self.scorer, self.queries, self.corpus, **options)
        queries, corpus = cast(StoredItems, self.queries), cast(StoredShards, self.corpus)
        with _ray_corpus(corpus, how.ray, how.threads) as searched:
            return searched.topk(cast(Scorer, self.scorer), queries.features, queries.lengths, **options)


@dataclass(frozen=True)
class Files:
    """Files that are written: results, pictures that were found, and a page that explains them."""

    output: Path | None
    sheet: Path | None
    html: Path | None

    def check(self, *read: Path | None) -> None:
        """Raise a ValueError where one cannot be written, or is among those that are read."""
        for path in (self.output, self.sheet, self.html):
            if path is not None:
                check_output(path, *read)

    def write(self, wanted: Search, found: Sequence[dict[str, Any]], title: str) -> None:
        """Write what was found, and print the first of it."""
        if self.output is not None:
            write_json_lines(self.output, found)
        if self.sheet is not None:
            drawn = [[(Path(one["picture"]), one["score"]) for one in entry["results"]] for entry in found]
            draw_sheet([SheetRow(entry["caption"], row) for entry, row in zip(found, drawn, strict=True)], self.sheet)
        if self.html is not None and wanted.index is not None:
            rows = [[result["index"] for result in entry["results"]] for entry in found]
            with progress_bar("explaining") as progress:
                page = index_page(wanted.index, [entry["caption"] for entry in found], rows, progress=progress)
            write_page(page, self.html)
        Console(emoji=False).print(results_table(found, title, wanted.item))


def of_features(directory: Path, asked: Asked, how: How) -> Search:
    """Features against a directory of features, by the score of the options."""
    refuse(
        {"split": how.split, "device": how.device, "text_encoder": how.text_encoder, **asked.typed},
        "needs RUN, a model, before CORPUS",
    )
    option, path = _one_given(asked.stored)
    of_option = dict(zip(asked.stored, asked.lengths, strict=True))[option]
    others = {name: value for name, value in asked.lengths.items() if name != of_option}
    refuse(others, f"is not for --{option}")
    if how.ray is not None:
        refuse({"candidates": how.candidates.given}, "is for a search by this machine, without --ray")
    side, other = _sides(option, path, directory)
    path, directory = side_directory(path, side), side_directory(directory, other)
    known = check_scored_by_rows(path, directory)
    corpus, queries = StoredShards.of_directory(directory), StoredItems.of_path(path, asked.lengths[of_option])
    query = "image" if side == IMAGES else "caption"
    return Search(
        how.scoring.scorer(query),
        queries,
        corpus,
        query,
        None,
        lambda item: {},
        lambda number, item: _why_not_finite((queries, number), corpus.stored(item)),
        str(directory),
        other.removesuffix("s") if known or option != "queries" else "document",
        how.scoring.normalize,
    )


def of_model(run: Path, directory: Path, asked: Asked, how: How) -> Search:
    """Texts, images by their numbers, or what a model encoded, against a split or what it encoded."""
    refuse({**asdict(how.scoring), **asked.lengths, "ray": how.ray}, "is for a corpus of features, without RUN")
    option, given = _one_given({**asked.typed, **asked.stored})
    source: Source
    if is_encoded(directory):
        refuse({"split": how.split}, f"is for data, but {directory} holds what a model encoded")
        model, vocabulary = load_model_of(run, how.device, how.text_encoder)
        source, name = EncodedSource(model, directory), str(directory)
    elif any((directory / name).is_file() for name in (FEATURES, VALUES, SHARDS)):
        raise ValueError(f"{directory}: features, but no {MODEL} of `encode`: search them without RUN")
    else:
        name = "test" if how.split is None else how.split
        model, data = load_trained(run, directory, name, how.device, how.text_encoder)
        vocabulary = data.vocabulary
        source = SplitSource(model, data)
    queries: EncodedSide
    labels: list[dict[str, Any]] | None = None
    if option == "image":
        side, other, queries, labels = IMAGES, CAPTIONS, source.picked(given), [{"image": number} for number in given]
    elif option in ("caption", "captions"):
        texts = _texts(option, given, model.config, vocabulary)
        with evaluating(model):
            queries = encode_texts(model, texts, vocabulary)
        side, other, labels = CAPTIONS, IMAGES, [{"caption": text} for text in texts]
    else:
        side, other = _sides(option, given, directory)
        queries = StoredEncoded.of_directory(given, side)

    def why_not_finite(query: int, item: int) -> str:
        if isinstance(queries, StoredEncoded):
            why = queries.why_not_finite(query)
        else:
            why = source.why_not_finite(side, given[query]) if option == "image" else None
        return why or source.why_not_finite(other, item) or WHY_OF_MODEL

    corpus, query = source.side(other), "image" if side == IMAGES else "caption"
    item = other.removesuffix("s")
    return Search(model, queries, corpus, query, labels, source.describe(other), why_not_finite, name, item)


def of_index(directory: Path, texts: list[str], asked: Asked, how: How) -> Search:
    """Texts against an index of pictures."""
    typed = dict(asked.typed)
    refuse(
        {
            **asdict(how.scoring), **asked.stored, **asked.lengths, "ray": how.ray, "split": how.split,
            "image": typed.pop("image"),
        },
        "is not for an index",
    )  # fmt: skip
    option, given = _one_given({"TEXT": texts, **typed})
    index = PictureIndex(directory, device=use_device(how.device), text_encoder=how.text_encoder)
    if index.retriever is None:
        texts = read_captions(given) if option == "captions" else list(given)
    else:
        texts = _texts(option, given, index.retriever.model.config, index.retriever.vocabulary)
    scorer, queries = index.asked(texts)

    def why_not_finite(query: int, item: int) -> str:
        if isinstance(index.images, StoredEncoded):
            return index.images.why_not_finite(item) or WHY_OF_MODEL
        return _why_not_finite(index.images.stored(item))

    return Search(
        scorer,
        queries,
        index.images,
        "caption",
        [{"caption": text} for text in texts],
        lambda item: {"picture": str(index.pictures[item])},
        why_not_finite,
        str(index.directory),
        "picture",
        index=index,
    )


def directories(places: Sequence[str]) -> list[Path]:
    """Directories that a search names: RUN and CORPUS, or one of them. What follows an index is text."""
    first = Path(places[0])
    named = [first] if is_index(first) else [Path(place) for place in places]
    for place in named:
        if not place.is_dir():
            raise ValueError(f"{place}: no such directory")
    if len(named) > 2:
        raise ValueError(f"{named[2]}: of directories there are RUN, a model, and CORPUS, no third one")
    return named


def _sides(asked: str, path: Path, directory: Path) -> tuple[str, str]:
    """Sides of the queries and of the corpus, "images" or "captions", as the option ``asked`` sets them.

    With --queries a manifest decides: the queries', else the corpus's. Without one, queries are captions.
    """
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
