"""A corpus that the workers of a cluster search: what one machine finds, to the last bit."""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import ray
import torch
from torch import Tensor

from crossret.evaluation import Progress
from crossret.files.shards import StoredShards
from crossret.search.blocks import Scorer, feature_blocks, plain_features, sides
from crossret.search.cluster.crew import ClusterError, Crew, Job
from crossret.search.cluster.worker import Search
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

# Parts of a corpus for each worker: so that the last ones end at about the same time, and little is done again.
_PARTS = 16
_CONNECT_SECONDS = 10.0


class RayCorpus:
    """A corpus of features that workers search, one on each node of a Ray cluster that has CPUs.

    Shards are memory maps of files where they are: every node that holds a shard, at the path that the list of them
    says, may search it. One file system for all nodes will do, or disks of their own. A worker that is lost is
    replaced, nodes that join the cluster get one, and what a lost one was at is asked of another. Results are those of
    one machine, to the last bit where all processors have the same instruction sets.

    Args:
        corpus: which shards there are; this machine need not hold them.
        address: of the cluster: "auto", HOST:PORT, or "local" for one of this machine alone; None: that which this
            process is connected to already or, where it is to none, which ``ray.init`` takes.
        threads: of each worker, and the CPUs that it asks for; None: all that its node has.
        patience: seconds after which it is an error that no node had CPUs free for a worker.

    Raises:
        ClusterError: there is no such cluster.
        ValueError: there is an address though this process is connected already, or threads is less than 1.
    """

    def __init__(
        self, corpus: StoredShards, address: str | None = None, *, threads: int | None = None, patience: float = 60.0
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.corpus = corpus.absolute()  # workers have directories of their own that they are in
        self._connected = not ray.is_initialized()
        if self._connected:
            _connect(address)
        elif address is not None:
            raise ValueError("address: this process is connected to a Ray cluster already, so it must be None")
        self._crew = Crew(self.corpus, threads, patience)
        self._searches = itertools.count()
        self._busy = threading.Lock()
        self._plans: dict[tuple[str, int], list[list[tuple[int, int]]]] = {}

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
            scorer: for instance ``crossret_kernels.scan_scores`` with its options bound; it is sent to the workers.
            queries, lengths: as ``scan_topk`` takes words or regions; every node holds them in memory.
            k, query, progress: as ``crossret_kernels.scan_topk``.

        Returns:
            (values, indices), both (queries, min(k, corpus)), best first, as ``scan_topk`` returns them.

        Raises:
            ClusterError: a shard is on none of the nodes, or cannot be read; workers are lost again and again, or
                cannot score; the connection is closed.
            TypeError, ValueError: as ``scan_topk``; or the scorer cannot be sent, or another search is going on.
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
        with self._alone():
            runs = self._planned(query, corpus_run_limit(len(blocks)))
            longest = (slice(*run) for of_shard in runs for run in of_shard)
            search = Search(
                scorer,
                os.environ.get(ENVIRONMENT_VARIABLE),
                query,
                plain_features(queries),
                lengths,
                blocks.runs(query_run_limit(longest)),
                int(k),
            )
            return self._search(search, runs, progress)

    def close(self) -> None:
        """End the workers, which another search starts again, and the connection where this made it."""
        self._crew.close()
        if self._connected:
            ray.shutdown()

    def __enter__(self) -> RayCorpus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raises a ValueError where another search is going on, in another thread or around this one."""
        if not self._busy.acquire(blocking=False):
            raise ValueError("this corpus is being searched: take one search after the other, or a RayCorpus for each")
        try:
            yield
        finally:
            self._busy.release()

    def _planned(self, query: str, most: int) -> list[list[tuple[int, int]]]:
        """The runs of every shard, which workers are asked for once."""
        if (query, most) not in self._plans:
            self._plans[query, most] = self._plan(query, most)
        return self._plans[query, most]

    def _plan(self, query: str, most: int) -> list[list[tuple[int, int]]]:
        runs: list[list[tuple[int, int]]] = [[] for _ in self.corpus.shards]
        jobs = [
            Job("plan", (number, query, most), number, shard.start / len(self.corpus))
            for number, shard in enumerate(self.corpus.shards)
        ]
        self._crew.run(jobs, runs.__setitem__)
        return runs

    def _search(
        self, search: Search, runs: list[list[tuple[int, int]]], progress: Progress | None
    ) -> tuple[Tensor, Tensor]:
        total = len(self.corpus)
        part = math.ceil(total / (_PARTS * max(len(self._crew.members), 1)))
        number, sent = next(self._searches), [ray.put(search)]
        jobs, sizes = [], []
        for shard, of_shard in enumerate(runs):
            for group in _grouped(of_shard, part):
                first, last = group[0][0], group[-1][1]
                middle = (self.corpus.shards[shard].start + (first + last) / 2) / total
                jobs.append(Job("topk", (number, sent, shard, group), shard, middle))
                sizes.append(last - first)
        best: list[tuple[Tensor, Tensor]] = []
        done = 0

        def take(job: int, result: Any) -> None:
            nonlocal done
            values, indices = (torch.from_numpy(array.copy()) for array in result)  # not the cluster's memory
            best[:] = [merge_topk([*best, (values, indices)], search.k)]
            done += sizes[job]
            if progress is not None:
                progress(done, total)

        self._crew.run(jobs, take)
        return best[0]


def _check_sent(scorer: Scorer) -> None:
    """Raise a TypeError where workers cannot get the scorer: before any starts, and without all queries in it."""
    try:
        ray.cloudpickle.dumps(scorer)
    except Exception as error:  # whatever a __reduce__ raises
        raise TypeError(f"scorer: {scorer!r} cannot be sent to the workers: {error}") from error


def _grouped(runs: list[tuple[int, int]], items: int) -> list[list[tuple[int, int]]]:
    """Successive runs together, of at least so many items but at the end."""
    groups: list[list[tuple[int, int]]] = []
    for run in runs:
        if groups and groups[-1][-1][1] - groups[-1][0][0] < items:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _connect(address: str | None) -> None:
    """Connect to a cluster; signals end this process as they did before."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    hint = "" if "RAY_AUTH_MODE" in os.environ else "; one that asks for a token needs RAY_AUTH_MODE=token"
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of jobs that were given up, which it would print
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdecimal():  # where nobody listens Ray itself tries again for minutes
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster at {address}: {error}{hint}") from error
    except SystemExit:  # what Ray makes of SIGTERM meanwhile
        if main:
            signal.signal(signal.SIGTERM, handler)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if main:
            signal.signal(signal.SIGTERM, handler)
