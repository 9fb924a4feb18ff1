"""Recall and time of candidates by an index of nearest vectors, beside exact search.

    python -m benchmarks.candidates RUN ENCODED --output benchmarks/results/candidates

RUN is a SCAN that `crossret train` made and ENCODED what `crossret encode` made of a split with it: captions search
images there. Beside them random corpora: a document's 32 tokens of 64 numbers lie about four of 2,000 topics and about
something of its own; a query is 16 of a document's tokens with noise, by Sum-Max. Searches of all and of candidates
take turns; making an index is timed apart, as it is kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import keep_record
from crossret.files.arrays import write_rows
from crossret.files.features import StoredItems
from crossret.models.checkpoints import load_model, model_directory
from crossret.search.nearest import VECTORS, NearestVectors, rows_of
from crossret.search.reranking import rerank
from crossret.search.retrieval import retrieve
from crossret.search.stored import StoredEncoded
from crossret_kernels import maxsim_scores

DOCUMENTS = (20_000, 200_000)
TOPICS, TOKENS, QUERY_TOKENS, DIM = 2_000, 32, 16, 64
QUERIES, K = 50, 10
COUNTS = (100, 200, 1_000)
TURNS = 2


def write_corpus(directory: Path, documents: int, seed: int = 0) -> tuple[StoredItems, StoredItems]:
    """Documents and queries of some of them, as features on the disk."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((TOPICS, DIM), np.float32)
    asked = np.sort(rng.choice(documents, min(QUERIES, documents), replace=False))
    queries = []
    for name in ("documents", "queries"):
        (directory / name).mkdir(parents=True)
    with write_rows(directory / "documents" / "features.npy", (TOKENS, DIM), "<f2") as write:
        for start in range(0, documents, 5_000):
            n = min(5_000, documents - start)
            own = (
                rng.standard_normal((n, 1, DIM), np.float32) / 2
                + topics[rng.integers(0, TOPICS, (n, 4))][np.arange(n)[:, None], rng.integers(0, 4, (n, TOKENS))]
            )
            rows = _unit(own + 0.7 * rng.standard_normal((n, TOKENS, DIM), np.float32))
            write(rows.astype(np.float16))
            for document in asked[(asked >= start) & (asked < start + n)]:
                some = rows[document - start][rng.permutation(TOKENS)[:QUERY_TOKENS]]
                queries.append(_unit(some + 0.15 * rng.standard_normal(some.shape, np.float32)))
    np.save(directory / "queries" / "features.npy", np.stack(queries))
    return tuple(StoredItems.of_directory(directory / name) for name in ("documents", "queries"))  # type: ignore[return-value]


def _unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def compared(
    name: str, queries: Any, corpus: Any, scorer: Any, counts: tuple[int, ...], *, normalize: bool
) -> list[dict[str, Any]]:
    """One row for every kind of vectors and number of candidates."""
    options: dict[str, Any] = {"k": K, "query": "caption"}
    _, wanted = retrieve(scorer, queries, corpus, **options)
    rows = []
    for vectors in VECTORS:
        started = time.perf_counter()
        index = NearestVectors(
            corpus.shards if isinstance(corpus, StoredEncoded) else corpus, vectors, normalize=normalize
        )
        build = time.perf_counter() - started
        for count in counts:

            def by_candidates(index: NearestVectors = index, count: int = count) -> Any:
                some = np.concatenate([index.candidates(*part, count) for part in rows_of(queries)])
                return rerank(scorer, queries, corpus, some, **options)

            seconds = _seconds(partial(retrieve, scorer, queries, corpus, **options), by_candidates)
            found = by_candidates()[1]
            shared = (found[:, :, None] == wanted[:, None]).any(1).float().mean()
            rows.append(
                {
                    "corpus": name,
                    "items": len(corpus),
                    "queries": len(queries),
                    "vectors": vectors,
                    "candidates": count,
                    "recall": float(shared),
                    "exact_seconds": seconds[0],
                    "seconds": seconds[1],
                    "build_seconds": build,
                }
            )
    return rows


def _seconds(*calls: Callable[[], object]) -> list[float]:
    """The median time of each, in turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, own in zip(calls, taken, strict=True):
            started = time.perf_counter()
            call()
            own.append(time.perf_counter() - started)
    return [statistics.median(own) for own in taken]


def table(result: dict[str, Any]) -> str:
    """Table of a result, in Markdown."""
    machine = result["machine"]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads, {result['date']}: which share of exact search's first {K} is "
        "found, and seconds of all queries by an open index.",
        "",
        "| corpus | vectors | candidates | recall | exact, s | by candidates, s | times as fast | index made in, s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["rows"]:
        cells = [
            f"{row['corpus']}: {row['queries']:,} queries, {row['items']:,} items",
            row["vectors"],
            f"{row['candidates']:,}",
            f"{row['recall']:.1%}",
            f"{row['exact_seconds']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['exact_seconds'] / row['seconds']:.1f}",
            f"{row['build_seconds']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("encoded", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--documents", type=int, nargs="*", default=DOCUMENTS)
    arguments = parser.parse_args()
    model, _ = load_model(model_directory(arguments.run))
    images, captions = (StoredEncoded.of_directory(arguments.encoded, side) for side in ("images", "captions"))
    counts = tuple(count for count in (20, 50, 100) if count < len(images))
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        os.environ["XDG_CACHE_HOME"] = directory  # indexes are made here, and not found
        rows = compared("scenes, SCAN", captions, images, model, counts, normalize=True)
        scorer = partial(maxsim_scores, direction="t2i")  # documents in the images' place: queries take their best
        for documents in arguments.documents:
            corpus, queries = write_corpus(Path(directory, str(documents)), documents)
            rows += compared("random, Sum-Max", queries, corpus, scorer, COUNTS, normalize=False)
    keep_record(arguments.output, {"rows": rows}, table)


if __name__ == "__main__":
    main()
