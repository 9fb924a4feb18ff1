"""Searching on a Ray cluster of two nodes: what one machine finds, whatever is lost on the way."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret.cli import main
from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.search.blocks import Scorer
from crossret.search.retrieval import retrieve
from crossret.search.sharding import cut_corpus
from crossret_kernels import UnsupportedByBackend, maxsim_scores, scan_scores
from tests.processes import started

pytest.importorskip("ray", reason="the extra ray is not installed")
import ray
from ray.cluster_utils import Cluster

from crossret.search.cluster import ClusterError, RayCorpus, crew

ITEMS, SHARDS = 900, 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node beside the one that this process is on, which tests may kill."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def node(cluster: Cluster) -> Any:
    """The second node; a new one where a test killed the last."""
    others = [node for node in cluster.worker_nodes if node.any_processes_alive()]
    return others[0] if others else cluster.add_node(num_cpus=1, wait=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus as one directory, packed, and in shards; queries."""
    directory = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 8, ITEMS)
    (directory / "whole").mkdir()
    rows = rng.standard_normal((lengths.sum(), 16), np.float32)
    rows[lengths[:500].sum() :][: lengths[500]] = 0  # scores of 0 tie
    np.save(directory / "whole" / "values.npy", rows.astype(np.float16))
    np.save(directory / "whole" / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))
    cut_corpus(directory / "whole", directory / "shards", shards=SHARDS)
    np.save(directory / "queries.npy", rng.standard_normal((40, 5, 16), np.float32))
    np.save(directory / "lengths.npy", rng.integers(1, 6, 40))
    return directory


def queries(files: Path) -> StoredItems:
    return StoredItems.of_file(files / "queries.npy", files / "lengths.npy")


@pytest.fixture(scope="module")
def searched(files: Path, cluster: Cluster) -> Iterator[RayCorpus]:
    """The corpus in shards, by workers on both nodes, whatever tests did to them."""
    with RayCorpus(StoredShards.of_directory(files / "shards")) as corpus:
        yield corpus


def slow(delay: float, log: Path, fault: Any = None) -> Scorer:
    """`scan_scores` that takes its time and says where it ran; a closure, which workers get by value."""

    def score(*sides: Any, **masks: Any) -> Tensor:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(delay)
        if fault is not None:
            fault()
        return scan_scores(*sides, **masks)

    return score


def by_two(log: Path) -> Scorer:
    """`slow` that waits until another worker is at it as well, which may still have to start."""
    return slow(0, log, lambda: wait_for_lines(log, 2))


def wait_for_lines(log: Path, number: int) -> None:
    """Until so many different ones have been written, each by a process of its own."""
    deadline = time.monotonic() + 120
    while len(set(log.read_text().split())) < number and time.monotonic() < deadline:
        time.sleep(0.05)


def expected(files: Path, scorer: Scorer, query: str = "caption", k: int = 7) -> tuple[Tensor, Tensor]:
    corpus = StoredShards.of_directory(files / "shards")
    return retrieve(scorer, queries(files), corpus, k=k, query=query)


def equal(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("query", ["caption", "image"])
@pytest.mark.parametrize(
    "scorer",
    [
        partial(scan_scores, direction="t2i"),
        partial(scan_scores, direction="i2t", pooling="lse"),
        partial(maxsim_scores, normalize=True),
    ],
)
@pytest.mark.parametrize("k", [7, 2 * ITEMS])
def test_what_one_machine_finds_to_the_last_bit(
    files: Path, searched: RayCorpus, node: Any, scorer: Scorer, query: str, k: int
) -> None:
    wanted = queries(files)
    found = searched.topk(scorer, wanted.features, wanted.lengths, k=k, query=query)
    assert equal(found, expected(files, scorer, query, k))
    assert found[0].dtype == torch.float32 and found[1].dtype == torch.int64


def test_the_backend_is_that_of_this_process(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = queries(files)
    monkeypatch.setenv("CROSSRET_BACKEND", "abacus")
    with pytest.raises(ClusterError, match=r"the worker on [\d.]+: CROSSRET_BACKEND must be one of .*'abacus'"):
        searched.topk(scan_scores, wanted.features, wanted.lengths, k=7)
    monkeypatch.delenv("CROSSRET_BACKEND")
    assert equal(searched.topk(scan_scores, wanted.features, wanted.lengths, k=7), expected(files, scan_scores))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("layout", ["padded", "packed", "list"])
def test_queries_in_memory_are_scored_in_float32(
    files: Path, searched: RayCorpus, node: Any, layout: str, dtype: torch.dtype
) -> None:
    stored = queries(files)
    assert stored.lengths is not None
    padded = torch.tensor(stored.values).half().to(dtype).requires_grad_()
    items = [item[:length] for item, length in zip(padded, stored.lengths.tolist(), strict=True)]
    offsets = torch.tensor([0, *stored.lengths.tolist()]).cumsum(0)
    given: Any = {"padded": padded, "packed": (torch.cat(items), offsets), "list": items}[layout]
    lengths = stored.lengths if layout == "padded" else None
    scorer = partial(maxsim_scores, direction="t2i")
    wanted = StoredItems(stored.path, stored.values.astype(np.float16), lengths=stored.lengths)
    corpus = StoredShards.of_directory(files / "shards")
    assert equal(searched.topk(scorer, given, lengths, k=7), retrieve(scorer, wanted, corpus, k=7, query="caption"))


def test_both_nodes_work_in_every_search(files: Path, searched: RayCorpus, node: Any, tmp_path: Path) -> None:
    wanted = queries(files)
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        scorer = slow(0.1, tmp_path / "log")
        found = searched.topk(scorer, wanted.features, wanted.lengths, k=7, progress=lambda *to: seen.append(to))
        assert equal(found, expected(files, scan_scores))
    assert len(set((tmp_path / "log").read_text().split())) == 2
    assert [counts for counts in seen if counts[0] == ITEMS] == [(ITEMS, ITEMS)] * 2
    assert len(seen) == 2 * SHARDS


def test_a_node_is_killed_in_the_middle_and_another_joins(
    files: Path, searched: RayCorpus, cluster: Cluster, node: Any, tmp_path: Path
) -> None:
    wanted = queries(files)
    scorer = slow(0.3, tmp_path / "log")
    done: list[int] = []

    def progress(items: int, total: int) -> None:
        done.append(items)
        if len(done) == 4:  # both have begun, and have jobs
            cluster.remove_node(node, allow_graceful=False)

    with pytest.warns(UserWarning, match="the worker on .* was lost, and is replaced"):
        found = searched.topk(scorer, wanted.features, wanted.lengths, k=7, progress=progress)
    assert equal(found, expected(files, scan_scores))
    assert done[-1] == ITEMS and len(done) == SHARDS, "each part counts once"
    cluster.add_node(num_cpus=1, wait=True)
    (tmp_path / "log").unlink()
    assert equal(searched.topk(by_two(tmp_path / "log"), wanted.features, wanted.lengths, k=7), found)
    assert len(set((tmp_path / "log").read_text().split())) == 2


def test_a_lost_worker_is_replaced(files: Path, searched: RayCorpus, node: Any, tmp_path: Path) -> None:
    wanted = queries(files)
    token = tmp_path / "token"
    token.touch()

    def die_once() -> None:
        try:
            token.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    scorer = slow(0.05, tmp_path / "log", die_once)
    with pytest.warns(UserWarning, match="was lost, and is replaced"):
        found = searched.topk(scorer, wanted.features, wanted.lengths, k=7)
    assert equal(found, expected(files, scan_scores))
    again = searched.topk(by_two(tmp_path / "second"), wanted.features, wanted.lengths, k=7)
    assert equal(again, found)
    assert len(set((tmp_path / "second").read_text().split())) == 2


def test_bfloat16_queries_and_none(files: Path, searched: RayCorpus, node: Any) -> None:
    stored = queries(files)
    rounded = torch.from_numpy(np.array(stored.values)).bfloat16()
    found = searched.topk(scan_scores, rounded, stored.lengths, k=7)
    assert equal(found, searched.topk(scan_scores, rounded.double().numpy(), stored.lengths, k=7))
    none = searched.topk(scan_scores, rounded[:0], k=7)
    assert none[0].shape == none[1].shape == (0, 7)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("lambda is no number"), "lambda is no number"),
        (UnsupportedByBackend("not by this backend"), "not by this backend"),
        (MemoryError("8 GB"), "not enough memory: 8 GB"),
    ],
)
def test_an_error_is_told_and_the_workers_go_on(
    files: Path, searched: RayCorpus, node: Any, tmp_path: Path, error: Exception, message: str
) -> None:
    wanted = queries(files)

    def refuse() -> None:
        raise error

    with pytest.raises(ClusterError, match=rf"the worker on [\d.]+: {message}$"):
        searched.topk(slow(0, tmp_path / "log", refuse), wanted.features, wanted.lengths, k=7)
    with pytest.raises(ClusterError, match=r"the worker on [\d.]+: backend 'cuda' cannot serve this call"):
        searched.topk(partial(scan_scores, backend="cuda"), wanted.features, wanted.lengths, k=7)
    assert equal(searched.topk(scan_scores, wanted.features, wanted.lengths, k=7), expected(files, scan_scores))


def test_workers_are_asked_for_what_they_hold(files: Path) -> None:
    """Nodes with disks of their own, which two nodes of one machine have not."""
    workers = crew.Crew(StoredShards.of_directory(files / "shards"), None, 1)
    held = {"a": (0, {0, 1, 4}), "b": (1, {2, 3, 4})}
    workers.members = {
        name: crew._Member(name, None, None, None, slot, frozenset(shards)) for name, (slot, shards) in held.items()
    }
    jobs = [crew.Job("topk", (), shard, shard / 6) for shard in range(6)]

    def chosen(name: str, *pending: int) -> int | None:
        return workers._choose(workers.members[name], jobs, list(pending))

    assert chosen("a", 0, 1, 2, 3, 4) == 0, "of its own half"
    assert chosen("b", 0, 1, 2, 3, 4) == 3, "the first of its own half that it holds"
    assert chosen("a", 2, 3, 4) == 4, "what it holds of the other's"
    assert chosen("a", 2, 3) is None
    workers._check_held({0, 2, 4})
    with pytest.raises(ClusterError, match="shards/00005: on none of the cluster's nodes"):
        workers._check_held({0, 5})


def test_bad_arguments(files: Path, searched: RayCorpus, node: Any) -> None:
    wanted = queries(files)
    with pytest.raises(ValueError, match=r"queries have D = 4, but .*shards\.json has 16"):
        searched.topk(scan_scores, np.ones((1, 2, 4), np.float32), k=1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        searched.topk(scan_scores, wanted.features, wanted.lengths, k=0)
    with pytest.raises(ValueError, match="query must be"):
        searched.topk(scan_scores, wanted.features, wanted.lengths, k=1, query="text")
    with pytest.raises(TypeError, match="progress must be a function"):
        searched.topk(scan_scores, wanted.features, wanted.lengths, k=1, progress=5)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"scorer: .* cannot be sent to the workers: cannot pickle") as error:
        searched.topk(lambda *sides: (lock, scan_scores(*sides))[1], wanted.features, wanted.lengths, k=1)
    assert len(str(error.value)) < 300
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        RayCorpus(searched.corpus, threads=0)
    with pytest.raises(ValueError, match="address: this process is connected to a Ray cluster already"):
        RayCorpus(searched.corpus, "auto")


def test_a_search_within_a_search(files: Path, searched: RayCorpus, node: Any) -> None:
    wanted = queries(files)

    def again(done: int, total: int) -> None:
        searched.topk(scan_scores, wanted.features, wanted.lengths, k=1)

    with pytest.raises(ValueError, match="this corpus is being searched: take one"):
        searched.topk(scan_scores, wanted.features, wanted.lengths, k=7, progress=again)
    assert equal(searched.topk(scan_scores, wanted.features, wanted.lengths, k=7), expected(files, scan_scores))


def test_a_closed_connection(files: Path, searched: RayCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match="the connection to the cluster is closed"):
        searched.topk(scan_scores, np.ones((1, 2, 16), np.float32), k=1)


def test_a_signal_that_comes_while_it_connects(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def init(*_: Any, **__: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray does
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            RayCorpus(StoredShards.of_directory(files / "shards"), "local")
        assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGTERM, handler)


def search(files: Path, output: Path, *options: str) -> list[str]:
    """The command's arguments, without the program."""
    wanted = ["--words", files / "queries.npy", "--word-lengths", files / "lengths.npy", "-k", "3"]
    return ["search", *map(str, [files / "shards", *wanted, "--output", output, *options])]


def test_no_cluster_at_the_address(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SystemExit) as left:
        main(search(files, tmp_path / "found.jsonl", "--ray", "127.0.0.1:1"))
    assert left.value.code == 2
    assert "crossret: no Ray cluster at 127.0.0.1:1" in capsys.readouterr().err


# From here on tests close the corpus that the others share: its workers have all CPUs.


@pytest.mark.filterwarnings("ignore:the worker on:UserWarning")
def test_what_kills_every_worker_is_given_up(
    files: Path, searched: RayCorpus, node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_TRIES", 2)
    wanted = queries(files)
    scorer = slow(0, tmp_path / "log", lambda: os._exit(1))
    with pytest.raises(ClusterError, match=r"shards/000\d\d: 2 workers were lost at it"):
        searched.topk(scorer, wanted.features, wanted.lengths, k=7)
    searched.close()  # another worker may still have such a job, and be lost in the next search


def test_a_corpus_that_is_not_in_shards_and_lies_where_this_process_is(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers began elsewhere, and may have another corpus of the same name there."""
    monkeypatch.chdir(files)
    corpus, wanted = StoredShards.of_directory(Path("whole")), queries(files)
    searched.close()
    with RayCorpus(corpus) as whole:
        found = whole.topk(scan_scores, wanted.features, wanted.lengths, k=9)
    assert equal(found, retrieve(scan_scores, wanted, corpus, k=9, query="caption"))


def test_a_shard_that_is_nowhere(files: Path, searched: RayCorpus, node: Any, tmp_path: Path) -> None:
    listed = StoredShards.of_directory(files / "shards")
    moved = tmp_path / "shards"
    moved.mkdir()
    (moved / "shards.json").write_bytes((files / "shards" / "shards.json").read_bytes())
    for shard in listed.shards:
        if shard is not listed.shards[3]:
            (moved / shard.directory.name).symlink_to(shard.directory)
    wanted = queries(files)
    searched.close()
    message = "shards/00003: on none of the cluster's nodes"
    with RayCorpus(StoredShards.of_directory(moved)) as corpus, pytest.raises(ClusterError, match=message):
        corpus.topk(scan_scores, wanted.features, wanted.lengths, k=7)


def test_a_node_where_no_worker_begins_is_left_out_and_named(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = queries(files)
    searched.close()
    there = node.node_id
    lost = tmp_path / "lost"
    lost.touch()

    def broken(*arguments: Any) -> Any:
        if ray.get_runtime_context().get_node_id() == there:
            with open(lost, "a") as file:
                file.write(f"{os.getpid()}\n")
            os._exit(1)
        return importlib.import_module("crossret.search.cluster.worker").Worker(*arguments)  # only now: it takes long

    monkeypatch.setattr(crew, "Worker", broken)
    monkeypatch.setattr(crew, "_TRIES", 2)
    scorer = slow(0.5, tmp_path / "log", lambda: wait_for_lines(lost, 2))  # ... before the other node has done it all
    with (
        RayCorpus(searched.corpus) as corpus,
        pytest.warns(UserWarning, match="is left out: 2 workers were lost as they began"),
    ):
        found = corpus.topk(scorer, wanted.features, wanted.lengths, k=7)
    assert equal(found, expected(files, scan_scores))


def test_a_worker_that_takes_long_to_begin(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has its CPUs, so that nobody need be patient. An hour passes then; what it imports may take that long."""
    searched.close()
    passed = tmp_path / "passed"

    def late(*arguments: Any) -> Any:
        while not passed.exists():
            time.sleep(0.05)
        return importlib.import_module("crossret.search.cluster.worker").Worker(*arguments)

    class Clock:
        hours = 0

        def monotonic(self) -> float:
            members = workers.members.values()
            if members and all(member.waiting is None for member in members) and not passed.exists():
                self.hours += 1
                if self.hours == 3:
                    passed.touch()
            return time.monotonic() + 3600 * self.hours

    monkeypatch.setattr(crew, "Worker", late)
    wanted = queries(files)
    with RayCorpus(searched.corpus) as corpus:
        workers = corpus._crew
        monkeypatch.setattr(crew, "time", Clock())
        found = corpus.topk(scan_scores, wanted.features, wanted.lengths, k=7)
    assert equal(found, expected(files, scan_scores))


def test_a_node_without_crossret(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here neither node has the module that the worker comes from."""
    searched.close()
    (tmp_path / "not_there.py").write_text("class Worker: pass")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(crew, "Worker", importlib.import_module("not_there").Worker)
    monkeypatch.setattr(crew, "_TRIES", 1)
    wanted = queries(files)
    message = "is left out: 1 workers were lost as they began: No module named 'not_there'"
    with RayCorpus(searched.corpus) as corpus, pytest.raises(UserWarning, match=message):  # as filterwarnings makes it
        corpus.topk(scan_scores, wanted.features, wanted.lengths, k=7)


def test_no_room_for_a_worker(files: Path, searched: RayCorpus, node: Any) -> None:
    wanted = queries(files)
    searched.close()
    holders = [ray.remote(crew._place()).options(num_cpus=1).remote() for _ in range(2)]  # type: ignore[attr-defined]
    ray.get([holder.ready.remote() for holder in holders])
    message = "no node had all of its CPUs free for a worker in 2 s; 2 are waiting"
    with RayCorpus(searched.corpus, patience=2) as corpus, pytest.raises(ClusterError, match=message):
        corpus.topk(scan_scores, wanted.features, wanted.lengths, k=7)
    for holder in holders:
        ray.kill(holder)


def test_the_command_finds_what_it_finds_without_ray(files: Path, tmp_path: Path) -> None:
    """In a process of its own, with a cluster of its own; its memory of SIGTERM is not Ray's."""
    outputs = [tmp_path / f"found{number}.jsonl" for number in range(2)]
    with pytest.raises(SystemExit) as left:
        main(search(files, outputs[0]))
    assert not left.value.code
    command = [sys.executable, "-m", "crossret", *search(files, outputs[1], "--ray", "local", "--threads", "1")]
    with started(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "900 images searched" in " ".join(out.split())
    found = [output.read_text() for output in outputs]
    assert found[0] == found[1] and found[0].count("\n") == 40
