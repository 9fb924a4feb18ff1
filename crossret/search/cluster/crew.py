"""Workers on the nodes of a cluster: one on each, replaced when it is lost, and jobs that are done once."""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from crossret import __version__
from crossret.files.shards import StoredShards
from crossret.mistakes import mistake
from crossret.search.cluster.worker import Worker

# A second job waits where the first one is done, so that a worker is not idle while its result travels.
_DEPTH = 2
# How often a job, or a node's worker as it starts, may be lost before it is taken for the cause.
_TRIES = 3
_LOOK_SECONDS = 1.0


class ClusterError(OSError):
    """What keeps a cluster from answering, in words for its user."""


@dataclass(frozen=True)
class Job:
    """A question to any worker that has a shard.

    Attributes:
        method, arguments: of ``Worker``.
        shard: which one it must have.
        place: where in the corpus it is, from 0 to 1. Workers begin with those of the same places in every search,
            whose pages their node may still have in memory.
    """

    method: str
    arguments: tuple[Any, ...]
    shard: int
    place: float


@dataclass
class _Member:
    """A worker, by the node that it is on."""

    address: str
    actor: Any
    waiting: Any  # what `ready` returns, or None once it has: the node gave the CPUs
    starting: Any  # what `start` returns, or None once it has
    slot: int
    shards: frozenset[int] = frozenset()
    doing: deque[Any] = field(default_factory=deque)  # in the order in which it does them


class Crew:
    """Workers on all nodes of the cluster that have CPUs, as nodes come and go.

    Args:
        corpus: what they search.
        threads: of each worker, and the CPUs that it asks Ray for; None: all of its node.
        patience: seconds after which it is an error that no worker has got its CPUs, whatever time one that has them
            takes to start.
    """

    def __init__(self, corpus: StoredShards, threads: int | None, patience: float) -> None:
        self.corpus = corpus
        self.threads = threads
        self.patience = patience
        self.members: dict[str, _Member] = {}
        self.failures: Counter[str] = Counter()
        self.never_began = ""
        self.looked = float("-inf")

    def run(self, jobs: Sequence[Job], take: Callable[[int, Any], object]) -> None:
        """Have all jobs done and ``take`` (number of the job, its result), once each, as they end.

        A worker that is lost takes nothing with it: a result counts when it is here, and what the worker was at is
        asked of the others.

        Raises:
            ClusterError: a job cannot be done: its shard is on no node, it fails, or workers are lost at it.
        """
        running: dict[Any, tuple[_Member, int]] = {}
        try:
            self._run(jobs, take, running)
        except BaseException:
            for ref, (member, _) in running.items():
                ray.cancel(ref)
                member.doing.clear()
            raise

    def close(self) -> None:
        """End all workers."""
        for member in self.members.values():
            ray.kill(member.actor)
        self.members.clear()

    def _run(
        self, jobs: Sequence[Job], take: Callable[[int, Any], object], running: dict[Any, tuple[_Member, int]]
    ) -> None:
        """``run``; ``running`` are the jobs that workers have, by what they will return."""
        pending = list(range(len(jobs)))
        tries: Counter[int] = Counter()
        busy = time.monotonic()
        while pending or running:
            self._staff()
            for member in self.members.values():
                while len(member.doing) < _DEPTH and (number := self._choose(member, jobs, pending)) is not None:
                    pending.remove(number)
                    job = jobs[number]
                    ref = member.actor.do.remote(job.method, *job.arguments)
                    member.doing.append(ref)
                    running[ref] = member, number
            waiting = {member.waiting: member for member in self.members.values() if member.waiting is not None}
            starting = [member.starting for member in self.members.values() if member.starting is not None]
            if running or len(starting) > len(waiting):
                busy = time.monotonic()
            elif time.monotonic() - busy > self.patience:
                cpus = f"{self.threads} CPUs" if self.threads else "all of its CPUs"
                raise ClusterError(
                    f"no node had {cpus} free for a worker in {self.patience:g} s; {len(waiting)} are waiting"
                    f"{self.never_began}"
                )
            if self.members and not starting:
                self._check_held({jobs[number].shard for number in pending})
            if not running and not starting:
                time.sleep(_LOOK_SECONDS)
                continue
            for ref in ray.wait([*running, *waiting, *starting], timeout=_LOOK_SECONDS)[0]:
                if ref in waiting:
                    waiting[ref].waiting = None  # where it was lost, `start` says so
                    continue
                if ref not in running:
                    self._started(ref)
                    continue
                member, number = running[ref]
                try:
                    result = self._result(member, ref)
                except _Lost as lost:
                    again = [running.pop(each)[1] for each in member.doing]
                    pending[:] = sorted([*pending, *again])
                    tries[again[0]] += 1  # the others were waiting
                    self._lose(member, lost.reason)
                    if tries[again[0]] == _TRIES:
                        shard = self.corpus.shards[jobs[again[0]].shard].directory
                        raise ClusterError(f"{shard}: {_TRIES} workers were lost at it; {lost.reason}") from lost
                    continue
                member.doing.remove(ref)
                del running[ref]
                take(number, result)

    def _staff(self) -> None:
        """Start a worker on every node that has none."""
        if time.monotonic() - self.looked < _LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        for node in ray.nodes():
            name, cpus = node["NodeID"], int(node["Resources"].get("CPU", 0))
            if not node["Alive"] or cpus < (self.threads or 1) or name in self.members or self.failures[name] == _TRIES:
                continue
            threads = self.threads or cpus
            where = NodeAffinitySchedulingStrategy(name, soft=False)
            place: Any = ray.remote(_place())
            actor = place.options(num_cpus=threads, scheduling_strategy=where).remote()
            taken = {member.slot for member in self.members.values()}
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            starting = actor.ready.remote(), actor.start.remote(Worker, self.corpus, threads)
            self.members[name] = _Member(node["NodeManagerAddress"], actor, *starting, slot)

    def _started(self, ref: Any) -> None:
        name, member = next((name, member) for name, member in self.members.items() if member.starting is ref)
        try:
            version, shards = self._result(member, ref)
        except (_Lost, RayTaskError) as error:
            if isinstance(error, RayTaskError) and not isinstance(error.cause, RaySystemError):
                raise
            # A RaySystemError is what its imports raised.
            reason = error.reason if isinstance(error, _Lost) else str(error.cause.args[0])
            self.failures[name] += 1
            self.never_began = f"; others were lost before they began: {reason}"
            if self.failures[name] == _TRIES:
                where = f"the node {member.address} is left out"
                warnings.warn(f"{where}: {_TRIES} workers were lost as they began: {reason}", stacklevel=2)
            self._lose(member, reason)
            return
        if version != __version__:
            raise ClusterError(f"the worker on {member.address} has crossret {version}, but this is {__version__}")
        member.starting, member.shards = None, frozenset(shards)
        del self.failures[name]

    def _choose(self, member: _Member, jobs: Sequence[Job], pending: list[int]) -> int | None:
        """A job for this worker: the first of its own place in the corpus, or else the last that it can do."""
        slots = max(other.slot for other in self.members.values()) + 1
        able = [number for number in pending if jobs[number].shard in member.shards]
        own = (number for number in able if int(jobs[number].place * slots) == member.slot)
        return next(own, able[-1] if able else None)

    def _result(self, member: _Member, ref: Any) -> Any:
        """What a worker answered; raises a ClusterError where it cannot, and _Lost where it is not there to."""
        try:
            return ray.get(ref)
        except RayTaskError as error:
            words = mistake(error.cause)
            if words is None:
                raise
            raise ClusterError(f"the worker on {member.address}: {words}") from error
        except RayError as error:
            raise _Lost(" ".join(line for line in str(error).splitlines() if line[:1] != "\t")) from error

    def _lose(self, member: _Member, reason: str) -> None:
        if member.starting is None:  # a node that is gone may be offered for a while: nothing is lost there
            warnings.warn(f"the worker on {member.address} was lost, and is replaced: {reason}", stacklevel=2)
        self.members = {name: other for name, other in self.members.items() if other is not member}
        self.looked = float("-inf")
        ray.kill(member.actor)  # which may only have been out of reach

    def _check_held(self, wanted: set[int]) -> None:
        """Raise a ClusterError where no worker has one of these shards."""
        missing = sorted(wanted.difference(*(member.shards for member in self.members.values())))
        if missing:
            others = f" and {len(missing) - 1} other shards" if len(missing) > 1 else ""
            raise ClusterError(f"{self.corpus.shards[missing[0]].directory}{others}: on none of the cluster's nodes")


def _place() -> type:
    """The class of actors that hold a worker. Nodes get it by value, without a module to import: so an actor is ready
    as soon as its node has given it CPUs, and only then imports PyTorch, which takes long where others compute."""

    class Place:
        def ready(self) -> None:
            """Returns when there is a process, which has its CPUs."""

        def start(self, worker: type, *arguments: Any) -> Any:
            self.worker = worker(*arguments)
            return self.worker.start()

        def do(self, method: str, *arguments: Any) -> Any:
            return getattr(self.worker, method)(*arguments)

    return Place


class _Lost(Exception):
    """A worker, or what it answered, is not there any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
