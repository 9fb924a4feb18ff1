"""A corpus that the nodes of a cluster search: what one machine finds, to the last bit."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from typing import Any

import ray
import torch
from torch import Tensor

from crossret.files.shards import StoredShards
from crossret.progress import Progress
from crossret.search.blocks import Scorer, feature_blocks, plain_features, sides
from crossret.search.cluster.nodes import ClusterError, Nodes
from crossret.search.cluster.tasks import Run, Search, runs_of, topk_of
from crossret_kernels.extending import (
    ENVIRONMENT_VARIABLE,
    Features,
    Lengths,
    check_k,
    check_progress,
    corpus_run_limit,
    merge_topk,
    query_run_limit,
)

# Parts of a corpus for each task at a time: so that the last ones end at about the same time, and little is done again.
_PARTS = 16
_CONNECT_SECONDS = 10.0
_runs_of: Any = ray.remote(runs_of)
_topk_of: Any = ray.remote(topk_of)


class RayCorpus:
    """A corpus of features that tasks search on the nodes of a Ray cluster that have CPUs.

    Shards are memory maps of files where they are: every node that holds a shard, at the path that the list of them
    says, may search it. One file system for all nodes will do, or disks of their own. What is lost with a node or a
    process is searched again by Ray. Results are those of one machine, to the last bit where all processors have the
    same instruction sets.

    Args:
        corpus: which shards there are; this machine need not hold them.
        address: of the cluster: "auto", HOST:PORT, or "local" for one of this machine alone; None: that which this
            process is connected to already or, where it is to none, which ``ray.init`` takes.
        threads: of each task, and the CPUs that it asks for; None: as many as the smallest node has.
        patience: seconds after which it is an error that no node had CPUs free.

    Raises:
        ClusterError: there is no such cluster.
        ValueError: there is an address though this process is connected already, or threads is less than 1.
    """

    def __init__(
        self, corpus: StoredShards, address: str | None = None, *, threads: int | None = None, patience: float = 60.0
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.corpus = corpus.absolute()  # tasks have directories of their own that they are in
        self._connected = not ray.is_initialized()
        if self._connected:
            _connect(address)
        elif address is not None:
            raise ValueError("address: this process is connected to a Ray cluster already, so it must be None")
        self._threads, self._patience = threads, patience

    def topk(
        self,
        scorer: Scorer,
        queries: Features,
        lengths: Lengths = None,
        *,
        k: int,
        query: str = "caption",
        progress: Progress | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The best items of the corpus for every query, scored in float32.

        Args:
            scorer: for instance ``crossret_kernels.scan_scores`` with its options bound; it is sent to the nodes.
            queries, lengths: as ``scan_topk`` takes words or regions; every node holds them in memory.
            k, query, progress: as ``crossret_kernels.scan_topk``.

        Returns:
            (values, indices), both (queries, min(k, corpus)), best first, as ``scan_topk`` returns them.

        Raises:
            ClusterError: a shard is on none of the nodes, or cannot be read; tasks are lost again and again, or cannot
                score; no CPUs are free; the connection is closed.
            TypeError, ValueError: as ``scan_topk``; or the scorer cannot be sent.
        """
        check_k(k)
        check_progress(progress)
        _check_sent(scorer)
        if not ray.is_initialized():
            raise ClusterError("the connection to the cluster is closed")
        blocks = feature_blocks(queries, lengths, sides(query)[0])
        dim = blocks.staging.size(1)
        if dim != self.corpus.dim:
            raise ValueError(f"queries have D = {dim}, but {self.corpus.path} has {self.corpus.dim}")
        nodes = Nodes(self.corpus, self._threads, self._patience)
        runs = self._runs(nodes, query, corpus_run_limit(len(blocks)))
        query_runs = blocks.runs(query_run_limit(slice(*run) for of_shard in runs for run in of_shard))
        backend = os.environ.get(ENVIRONMENT_VARIABLE)
        sent = plain_features(queries)
        search = Search(self.corpus, scorer, backend, nodes.threads, query, sent, lengths, query_runs, int(k))
        return self._search(nodes, search, runs, progress)

    def close(self) -> None:
        """End the connection where this made it."""
        if self._connected:
            ray.shutdown()

    def __enter__(self) -> RayCorpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _runs(self, nodes: Nodes, query: str, most: int) -> list[list[Run]]:
        """Runs of every shard: what a score is to the last bit depends on what it is computed with."""
        runs: list[list[Run]] = [[] for _ in self.corpus.shards]
        corpus = ray.put(self.corpus)
        jobs = [(shard, (corpus, shard, query, most)) for shard in range(len(runs))]
        for shard, of_shard in nodes.run(_runs_of, jobs):
            runs[shard] = of_shard
        return runs

    def _search(
        self, nodes: Nodes, search: Search, runs: list[list[Run]], progress: Progress | None
    ) -> tuple[Tensor, Tensor]:
        total = len(self.corpus)
        part = math.ceil(total / (_PARTS * nodes.slots))
        sent = ray.put(search)
        groups = [(shard, group) for shard, of_shard in enumerate(runs) for group in _grouped(of_shard, part)]
        best: list[tuple[Tensor, Tensor]] = []
        done = 0
        for job, result in nodes.run(_topk_of, [(shard, (sent, shard, group)) for shard, group in groups]):
            values, indices = (torch.from_numpy(array.copy()) for array in result)  # not the cluster's memory
            best = [merge_topk([*best, (values, indices)], search.k)]
            group = groups[job][1]
            done += group[-1][1] - group[0][0]
            if progress is not None:
                progress(done, total)
        return best[0]


def _check_sent(scorer: Scorer) -> None:
    """Raise a TypeError where nodes cannot get the scorer: before any task starts, and without all queries in it."""
    try:
        ray.cloudpickle.dumps(scorer)
    except Exception as error:  # whatever a __reduce__ raises
        raise TypeError(f"scorer: {scorer!r} cannot be sent to the nodes: {error}") from error


def _grouped(runs: list[Run], items: int) -> list[list[Run]]:
    """Successive runs together, of at least so many items but at the end."""
    groups: list[list[Run]] = []
    for run in runs:
        if groups and groups[-1][-1][1] - groups[-1][0][0] < items:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _connect(address: str | None) -> None:
    """Connect to a cluster; signals end this process as they did before."""
    handler = signal.getsignal(signal.SIGTERM)
    hint = "" if "RAY_AUTH_MODE" in os.environ else "; one that asks for a token needs RAY_AUTH_MODE=token"
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # else it prints those of jobs that were given up
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdecimal():  # where nobody listens Ray itself tries again for minutes
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster at {address}: {error}{hint}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # which Ray has set
