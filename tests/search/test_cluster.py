"""Searching on a Ray cluster of two nodes: what one machine finds, whatever is lost on the way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret import __version__
from crossret.cli import main
from crossret.files.features import StoredItems
from crossret.files.shards import StoredShards
from crossret.search.blocks import Scorer
from crossret.search.retrieval import retrieve
from crossret.search.sharding import cut_corpus
from crossret_kernels import maxsim_scores, scan_scores
from tests.processes import started

pytest.importorskip("ray", reason="the extra ray is not installed")
import ray
from ray.cluster_utils import Cluster

from crossret.search.cluster import ClusterError, RayCorpus, nodes

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


@pytest.fixture(autouse=True)
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
    """The corpus in shards."""
    with RayCorpus(StoredShards.of_directory(files / "shards")) as corpus:
        yield corpus


def logged(log: Path, delay: float = 0, fault: Any = None) -> Scorer:
    """`scan_scores` that says on which node it ran and takes its time; a closure, which nodes get by value."""

    def score(*sides: Any, **masks: Any) -> Tensor:
        with open(log, "a") as file:
            file.write(f"{ray.get_runtime_context().get_node_id()}\n")
        time.sleep(delay)
        if fault is not None:
            fault()
        return scan_scores(*sides, **masks)

    return score


def nodes_of(log: Path) -> set[str]:
    return set(log.read_text().split())


def best(corpus: RayCorpus, files: Path, scorer: Scorer, **options: Any) -> tuple[Tensor, Tensor]:
    wanted = queries(files)
    return corpus.topk(scorer, wanted.features, wanted.lengths, **{"k": 7, **options})


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
    files: Path, searched: RayCorpus, scorer: Scorer, query: str, k: int
) -> None:
    found = best(searched, files, scorer, k=k, query=query)
    assert equal(found, expected(files, scorer, query, k))
    assert found[0].dtype == torch.float32 and found[1].dtype == torch.int64


def test_the_backend_is_that_of_this_process(files: Path, searched: RayCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSRET_BACKEND", "abacus")
    with pytest.raises(ClusterError, match=r"on the node [\d.]+: CROSSRET_BACKEND must be one of .*'abacus'"):
        best(searched, files, scan_scores)
    monkeypatch.delenv("CROSSRET_BACKEND")
    assert equal(best(searched, files, scan_scores), expected(files, scan_scores))


def test_tasks_go_where_their_shards_are(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nodes with disks of their own, which two nodes of one machine have not: only one is said to hold anything."""
    there = node.node_id

    def look(directories: list[Path]) -> tuple[str, list[int]]:
        held = ray.get_runtime_context().get_node_id() == there
        return __version__, [*range(len(directories))] if held else []

    monkeypatch.setattr(nodes, "_look", ray.remote(num_cpus=0)(look))
    found = best(searched, files, logged(tmp_path / "log"))
    assert equal(found, expected(files, scan_scores))
    assert nodes_of(tmp_path / "log") == {there}


def test_a_node_is_killed_in_the_middle(
    files: Path, searched: RayCorpus, cluster: Cluster, node: Any, tmp_path: Path
) -> None:
    done: list[int] = []

    def progress(items: int, total: int) -> None:
        done.append(items)
        if len(done) == 3:  # the other has begun, and holds tasks
            cluster.remove_node(node, allow_graceful=False)

    scorer = logged(tmp_path / "log", 0.3)
    found = best(searched, files, scorer, progress=progress)
    assert equal(found, expected(files, scan_scores))
    assert done[-1] == ITEMS and len(done) == SHARDS, "each part counts once"
    assert len(nodes_of(tmp_path / "log")) == 2
    while sum(other["Alive"] for other in ray.nodes()) > 1:  # or the next search would ask it, too
        time.sleep(0.1)


def test_a_lost_process_is_replaced_and_what_kills_all_is_given_up(
    files: Path, searched: RayCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TASK_MAX_RETRIES", "1")  # of Ray's three: each process imports PyTorch first
    token = tmp_path / "token"
    token.touch()

    def die_once() -> None:
        if token.exists():
            token.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)

    found = best(searched, files, logged(tmp_path / "log", 0, die_once))
    assert equal(found, expected(files, scan_scores))
    whole, deadly = StoredShards.of_directory(files / "whole"), logged(tmp_path / "log", 0, lambda: os._exit(1))
    with RayCorpus(whole) as corpus, pytest.raises(ClusterError, match="whole: The worker died unexpectedly"):
        best(corpus, files, deadly)
    assert equal(best(searched, files, scan_scores), found)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("lambda is no number"), "lambda is no number"),
        (MemoryError("8 GB"), "not enough memory: 8 GB"),
    ],
)
def test_a_mistake_is_told(files: Path, searched: RayCorpus, tmp_path: Path, error: Exception, message: str) -> None:

    def refuse() -> None:
        raise error

    with pytest.raises(ClusterError, match=rf"shards/000\d\d: on the node [\d.]+: {message}$"):
        best(searched, files, logged(tmp_path / "log", 0, refuse))


def test_an_interruption_cancels_what_is_left(files: Path, searched: RayCorpus, tmp_path: Path) -> None:

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    scorer = logged(tmp_path / "log", 0.5)
    with pytest.raises(KeyboardInterrupt):
        best(searched, files, scorer, progress=interrupt)
    assert equal(best(searched, files, scan_scores), expected(files, scan_scores))
    assert len((tmp_path / "log").read_text().split()) < SHARDS


def test_bad_arguments(files: Path, searched: RayCorpus) -> None:
    with pytest.raises(ValueError, match=r"queries have D = 4, but .*shards\.json has 16"):
        searched.topk(scan_scores, np.ones((1, 2, 4), np.float32), k=1)
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"scorer: .* cannot be sent to the nodes: cannot pickle") as error:
        best(searched, files, lambda *sides: (lock, scan_scores(*sides))[1], k=1)
    assert len(str(error.value)) < 300
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        RayCorpus(searched.corpus, threads=0)
    with pytest.raises(ValueError, match="address: this process is connected to a Ray cluster already"):
        RayCorpus(searched.corpus, "auto")


def test_a_shard_that_is_nowhere(files: Path, searched: RayCorpus, tmp_path: Path) -> None:
    first, lost, *others = searched.corpus.shards
    corpus = replace(searched.corpus, shards=(first, replace(lost, directory=tmp_path / "00001"), *others))
    with RayCorpus(corpus) as some, pytest.raises(ClusterError, match="00001: on none of the cluster's nodes"):
        best(some, files, scan_scores)


def test_a_node_without_this_crossret_is_left_out_and_named(
    files: Path, searched: RayCorpus, node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = node.node_id

    def look(directories: list[Path]) -> tuple[str, list[int]]:
        if ray.get_runtime_context().get_node_id() == there:
            raise ModuleNotFoundError("No module named 'crossret'")
        return __version__, [*range(len(directories))]

    monkeypatch.setattr(nodes, "_look", ray.remote(num_cpus=0)(look))
    with pytest.warns(UserWarning, match=r"the node [\d.]+ is left out: .*No module named 'crossret'"):
        found = best(searched, files, logged(tmp_path / "log"))
    assert equal(found, expected(files, scan_scores))
    assert there not in nodes_of(tmp_path / "log")


def test_no_room(files: Path, searched: RayCorpus) -> None:
    message = "no node had 2 CPUs free in 2 s"
    with RayCorpus(searched.corpus, threads=2, patience=2) as corpus, pytest.raises(ClusterError, match=message):
        best(corpus, files, scan_scores)


def search(files: Path, output: Path, *options: str) -> list[str]:
    """The command's arguments, without the program."""
    wanted = ["--words", files / "queries.npy", "--word-lengths", files / "lengths.npy", "-k", "3"]
    return ["search", *map(str, [files / "shards", *wanted, "--output", output, *options])]


def test_no_cluster_at_the_address_and_a_closed_connection(
    files: Path,
    searched: RayCorpus,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SystemExit) as left:
        main(search(files, tmp_path / "found.jsonl", "--ray", "127.0.0.1:1"))
    assert left.value.code == 2
    assert "crossret: no Ray cluster at 127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(ClusterError, match="the connection to the cluster is closed"):
        searched.topk(scan_scores, np.ones((1, 2, 16), np.float32), k=1)


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
