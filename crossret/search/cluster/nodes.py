"""The nodes of a Ray cluster, the shards that each has, and tasks that Ray runs on any node that has theirs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from crossret import __version__
from crossret.files.shards import StoredShards
from crossret.mistakes import mistake

_LOOK_SECONDS = 1.0
_NODE = "ray.io/node-id"  # a label that Ray gives every node


class ClusterError(OSError):
    """Reason why a cluster does not answer, in words for its user."""


class Nodes:
    """The nodes that search a corpus, as they are when a search begins; one without crossret is left out.

    Attributes:
        threads: of a task, and the CPUs that it asks for: as given, or as many as the smallest node has.
        slots: how many tasks may run at a time.
    """

    def __init__(self, corpus: StoredShards, threads: int | None, patience: float) -> None:
        """Raises a ClusterError where a shard is on no node, or none has had CPUs free after ``patience`` seconds."""
        self.corpus = corpus
        _wait_for_room(threads or 1, patience)  # ahead of the list of nodes, as a cluster may get some for it
        nodes = {name: node for name, node in _alive().items() if node["Resources"].get("CPU", 0) >= (threads or 1)}
        cpus = [int(node["Resources"]["CPU"]) for node in nodes.values()]
        self.threads = threads or min(cpus, default=1)
        self.slots = sum(number // self.threads for number in cpus)
        _wait_for_room(self.threads, patience)  # perhaps all CPUs of a node, where others may have some
        paths = [shard.directory for shard in corpus.shards]
        there = {name: NodeAffinitySchedulingStrategy(name, soft=False) for name in nodes}
        asked = {name: _look.options(scheduling_strategy=only).remote(paths) for name, only in there.items()}
        self.holders: list[set[str]] = [set() for _ in paths]
        for name, ref in asked.items():
            try:
                version, held = ray.get(ref, timeout=patience)
                why = f"it has crossret {version}, and this is {__version__}" if version != __version__ else None
            except RayError as error:
                held, why = [], _words(error)
            if why is not None:
                warnings.warn(f"the node {nodes[name]['NodeManagerAddress']} is left out: {why}", stacklevel=4)
                continue
            for shard in held:
                self.holders[shard].add(name)
        self._check_held(range(len(paths)))

    def run(self, task: Any, jobs: Sequence[tuple[int, tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        """Calls of a remote function, each where its shard is: (number of the job, result) as they end.

        Ray runs again, three times, what is lost with a process or a node. What still runs when the caller stops is
        cancelled.

        Args:
            task: the function.
            jobs: the shard and the arguments of each call.

        Raises:
            ClusterError: a call fails or is lost too often, or no node has its shard any more.
        """
        running: dict[Any, int] = {}
        try:
            for number, (shard, arguments) in enumerate(jobs):
                where = {_NODE: f"in({','.join(self.holders[shard])})"}
                running[task.options(num_cpus=self.threads, label_selector=where).remote(*arguments)] = number
            while running:
                ended, _ = ray.wait([*running], timeout=_LOOK_SECONDS)
                if not ended:
                    self._check_held(jobs[number][0] for number in running.values())
                for ref in ended:
                    number = running.pop(ref)
                    directory = self.corpus.shards[jobs[number][0]].directory
                    try:
                        result = ray.get(ref)
                    except RayError as error:
                        raise ClusterError(f"{directory}: {_words(error)}") from error
                    yield number, result
        finally:
            for ref in running:
                ray.cancel(ref)

    def _check_held(self, shards: Iterable[int]) -> None:
        alive = _alive()
        missing = sorted(shard for shard in set(shards) if self.holders[shard].isdisjoint(alive))
        if missing:
            others = f" and {len(missing) - 1} other shards" if len(missing) > 1 else ""
            raise ClusterError(f"{self.corpus.shards[missing[0]].directory}{others}: on none of the cluster's nodes")


def _alive() -> dict[str, dict[str, Any]]:
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _wait_for_room(threads: int, patience: float) -> None:
    ref = _nothing.options(num_cpus=threads).remote()
    try:
        ray.get(ref, timeout=patience)
    except GetTimeoutError:
        ray.cancel(ref)
        raise ClusterError(f"no node had {threads} CPUs free in {patience:g} s") from None


def _words(error: RayError) -> str:
    """Words for an error, and its node; raises the error again where it is a bug."""
    if not isinstance(error, RayTaskError):
        return " ".join(line for line in str(error).splitlines() if line[:1] != "\t")
    words = str(error.cause) if isinstance(error.cause, ImportError) else mistake(error.cause)
    if words is None:
        raise error
    node = re.search(r"\bip=([^,)\s]+)", str(error))
    return f"on the node {node[1]}: {words}" if node else words


def _by_value() -> tuple[Any, Any]:
    """Small tasks that nodes get without a module to import: PyTorch, which comes with ours, takes long."""

    def look(directories: list[Path]) -> tuple[str, list[int]]:
        from crossret import __version__

        return __version__, [number for number, directory in enumerate(directories) if directory.is_dir()]

    return ray.remote(num_cpus=0, max_retries=0)(look), ray.remote(lambda: None)


_look, _nothing = _by_value()
