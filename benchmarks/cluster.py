"""How fast one and two workers of a Ray cluster search a corpus, beside one process, and what a billion tokens take.

    python -m benchmarks.cluster --output benchmarks/results/cluster

Documents of random unit vectors in float16, as late interaction stores them, lie in shards in files that have been read
before; queries are 32 tokens. A node of the cluster has one CPU, and so has the process beside it: both search by
Sum-Max in turns, the process and a cluster of one node, then the process and a cluster of two, and ratios are taken
within a turn. What is found is compared bit by bit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster
from rich.progress import track

from benchmarks.records import keep_record
from benchmarks.turns import take_turns, timed
from crossret.files.arrays import write_rows
from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.search.cluster import RayCorpus
from crossret.search.retrieval import retrieve
from crossret.search.sharding import cut_corpus
from crossret_kernels import maxsim_scores
from crossret_kernels.topk.streamed import merge_topk

DIM, QUERY_TOKENS, K = 128, 32, 100
QUERIES = (1, 16, 64)
SHARDS = 16
PROCESS = "one process"
BILLION = 10**9
WORKERS = (1, 2, 16, 128)
_SCORER = partial(maxsim_scores, direction="i2t")  # queries in the images' place: each of their tokens takes its best


def write_corpus(directory: Path, documents: int) -> int:
    """Write documents of 40 to 160 tokens; how many tokens they have."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 161, documents)
    directory.mkdir()
    with write_rows(directory / "values.npy", (DIM,), "<f2") as write:
        for some in np.array_split(lengths, max(1, documents // 500)):
            rows = rng.standard_normal((some.sum(), DIM), np.float32)
            write((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16))
    np.save(directory / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))
    return int(lengths.sum())


def measure(directory: Path, documents: int, seconds: float) -> dict[str, Any]:
    """Seconds of a search by number of queries and of workers, each beside the process in the same turns."""
    tokens = write_corpus(directory / "whole", documents)
    cut_corpus(directory / "whole", directory / "shards", shards=SHARDS)
    corpus = StoredShards.of_directory(directory / "shards")
    rng = np.random.default_rng(1)
    for number in QUERIES:
        np.save(directory / f"{number}.npy", rng.standard_normal((number, QUERY_TOKENS, DIM), np.float32))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    rows = []
    try:
        for workers in (1, 2):
            cluster.add_node(num_cpus=1, wait=True)
            with RayCorpus(corpus) as searched:
                for number in track(QUERIES, f"{workers} workers"):
                    rows.append({"workers": workers, **_compare(searched, directory / f"{number}.npy", seconds)})
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {"tokens": tokens, "documents": documents, "dim": DIM, "k": K, "searches": rows, "merge": merge_seconds()}


def _compare(searched: RayCorpus, path: Path, seconds: float) -> dict[str, Any]:
    queries = StoredItems.of_file(path)
    found = searched.topk(_SCORER, queries.features, k=K, query="image")
    expected = retrieve(_SCORER, queries, searched.corpus, k=K, query="image")
    if not all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True)):
        raise RuntimeError("the cluster finds something else than one process")
    turns = take_turns(
        {
            PROCESS: timed(lambda: retrieve(_SCORER, queries, searched.corpus, k=K, query="image")),
            "cluster": timed(lambda: searched.topk(_SCORER, queries.features, k=K, query="image")),
        },
        seconds,
        least=3,
        most=15,
    )
    return {
        "queries": len(queries),
        "seconds": turns.median("cluster"),
        "process_seconds": turns.median(PROCESS),
        "speed": turns.ratio(PROCESS, "cluster"),
        "turns": len(turns.seconds[PROCESS]),
    }


def merge_seconds() -> dict[str, float]:
    """Cost of merging one part's best for the process that asks, by the number of queries."""
    merged = {}
    for number in QUERIES:
        part = torch.rand(number, K).sort(descending=True).values, torch.arange(K).repeat(number, 1)
        start = time.perf_counter()
        for _ in range(100):
            merge_topk([part, part], K)
        merged[str(number)] = (time.perf_counter() - start) / 100
    return merged


def markdown(report: Mapping[str, Any]) -> str:
    """The figures, and the arithmetic for a billion tokens."""
    machine, tokens = report["machine"], report["tokens"]
    lines = [
        f"Sum-Max of {QUERY_TOKENS}-token queries, the best {report['k']}, over {report['documents']:,} documents of "
        f"{tokens:,} tokens, D = {report['dim']}, float16, in {SHARDS} shards: {machine['cpu']}, {machine['cores']} "
        f"cores, a worker on each, torch {machine['torch']}, ray {machine['ray']}. Medians of turns; results equal to "
        "the bit.",
        "",
        "| queries | workers | seconds | million tokens a second | queries a second | × one process of one thread |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["searches"]:
        lines.append(
            f"| {row['queries']} | {row['workers']} | {row['seconds']:.3g} | {tokens / row['seconds'] / 1e6:.3g} | "
            f"{row['queries'] / row['seconds']:.3g} | {row['speed']:.2f} |"
        )
    size, millions = BILLION * report["dim"] * 2, BILLION / tokens * report["documents"] / 1e6
    lines += [
        "",
        f"A billion tokens are {size / 1e9:,.0f} GB in float16, {millions:.1f} million such documents. Seconds of a "
        "search by the rates above; of more than 2 workers by that of each of the 2, which is arithmetic and no "
        "measurement, with every worker's part of the corpus in memory:",
        "",
        f"| queries | {' | '.join(f'{workers} workers, {size / workers / 1e9:,.3g} GB each' for workers in WORKERS)} |",
        f"|---:|{'---:|' * len(WORKERS)}",
    ]
    for number in QUERIES:
        rates = {row["workers"]: tokens / row["seconds"] for row in report["searches"] if row["queries"] == number}
        each = rates[2] / 2
        cells = [f"{BILLION / rates.get(workers, each * workers):,.3g}" for workers in WORKERS]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    lines += [
        "",
        "The process that asks merges 16 parts a worker, for "
        + ", ".join(f"{number} queries in {seconds * 1e3:.2g} ms" for number, seconds in report["merge"].items())
        + f" each: with {WORKERS[-1]} workers "
        + ", ".join(f"{seconds * 16 * WORKERS[-1]:.2g} s" for seconds in report["merge"].values())
        + " of a search, beside the workers' time. A part's answer is 12 bytes for each of the best of a query.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the figures, as JSON and as tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="directory of the figures, made if absent")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20, help="of the turns of each comparison, about")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        report = measure(Path(directory), arguments.documents, arguments.seconds)
    keep_record(arguments.output, report, markdown, ray=ray.__version__)


if __name__ == "__main__":
    main()
