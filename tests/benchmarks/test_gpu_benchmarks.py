"""The GPU benchmarks where there is no GPU: the sources' hash, stale figures, tables, runs by a made-up clock."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.gpu import implementations, inputs, merges, report, run, scores
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.fastest import doubts
from benchmarks.gpu.implementations import COMPILED, LOOP, PEERS, mask_of, operands
from benchmarks.gpu.lists import ListCase
from benchmarks.gpu.losses import LossCase
from benchmarks.gpu.merges import MergeCase
from benchmarks.gpu.results import GpuResults, Measurement, read_gpu_results, write_gpu_results
from benchmarks.gpu.scores import SAMPLED_CAPTIONS, ScoreCase
from benchmarks.gpu.sources import KERNELS, described, kernel_sources, source_hashes
from benchmarks.gpu.suite import suite_of
from benchmarks.gpu.tables import STALE, gpu_table, missed_targets
from benchmarks.gpu.timing import MOST_COPIES, ROTATED_BYTES, copies, median_seconds
from benchmarks.gpu.work import GpuCase
from crossret_kernels.backends import FASTEST_FIRST

CPU = torch.device("cpu")
SOURCES = {"triton": "abc", "cuda": "def"}
SUITE = {"passed": 9, "failed": 0, "skipped": 1}


def measurement(implementation: str, seconds: float, **others: Any) -> Measurement:
    known: dict[str, Any] = {
        "operation": "t2i LSE forward", "case": "128 by 128", "precision": "bfloat16", "pairs": 128 * 128,
        "work": 8000, "rounds": 9, "floor": "product", "floor_seconds": 0.002, "error": 1e-3, "peak_mebibytes": 48.0,
    }  # fmt: skip
    return Measurement(implementation=implementation, seconds=seconds, **known | others)


@pytest.fixture
def results() -> GpuResults:
    measurements = [
        measurement("triton", 0.003, target=1.35),
        measurement("loop", 0.3, pairs=128 * 64, work=4000, slower={"triton": 150.0}),
    ]
    device = {"name": "Some GPU (R) 9", "capability": "9.0", "mebibytes": 1000}
    missing = {"flash-maxsim": "no module"}
    return GpuResults("2026-01-02", device, {"torch": "2.11"}, SOURCES, SUITE, missing, measurements)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources, to be changed."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("crossret_kernels", "csrc"):
        shutil.copytree(report.ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "setup_cuda.py"):
        shutil.copy(report.ROOT / name, tmp_path)
    return tmp_path


def names_of(backend: str) -> set[str]:
    return {path.relative_to(report.ROOT).as_posix() for path in kernel_sources(backend)}


def test_sources_are_the_kernels_and_what_they_are_built_on() -> None:
    triton, cuda = names_of("triton"), names_of("cuda")
    assert {f"crossret_kernels/{name}.py" for name in ("gpu/triton_tiles", "gpu/triton_launch")} <= triton - cuda
    assert {f"crossret_kernels/{name}.py" for name in ("gpu/sides", "gpu/planning", "maxsim/searches")} <= triton & cuda
    assert "crossret_kernels/cross_attention/triton/forward.py" in triton - cuda
    assert {
        "crossret_kernels/cross_attention/cuda/plan.py", "crossret_kernels/topk/cuda.py", "setup.py", "setup_cuda.py",
        "csrc/cross_attention/cuda.cu", "csrc/cross_attention/attention.cuh", "csrc/maxsim/cuda_gradients.cu",
        "csrc/ranking_loss/cuda_tensors.cpp", "csrc/cuda/binding.cpp", "csrc/cuda/product.cuh", "csrc/tensor.h",
    } <= cuda - triton  # fmt: skip
    assert not {name for name in triton | cuda if "chunked" in name or "reference" in name or name.endswith(".inl")}


def test_the_cuda_library_is_built_of_them() -> None:
    """All that lies beside them is of the CPU."""
    of_cuda = {path.relative_to(report.ROOT).as_posix() for path in (report.ROOT / "csrc").rglob("*.cu*")}
    assert of_cuda <= names_of("cuda")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("crossret_kernels/cross_attention/triton/attention.py", ["triton"]),
        ("crossret_kernels/maxsim/cuda/forward.py", ["cuda"]),
        ("csrc/maxsim/search.cuh", ["cuda"]),
        ("setup_cuda.py", ["cuda"]),
        ("crossret_kernels/gpu/planning.py", ["triton", "cuda"]),
        ("crossret_kernels/cross_attention/reference.py", []),
        ("csrc/maxsim/best.inl", []),
    ],
)
def test_hashes_change_with_any_of_the_sources(name: str, changed: list[str], package: Path) -> None:
    before = source_hashes(package)
    assert before == source_hashes()
    path = package / name
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    after = source_hashes(package)
    assert [backend for backend in KERNELS if after[backend] != before[backend]] == changed


@pytest.mark.parametrize(
    ("name", "backend"), [("crossret_kernels/ranking_loss/triton.py", "triton"), ("csrc/topk/cuda_more.cu", "cuda")]
)
def test_hashes_count_new_kernels(name: str, backend: str, package: Path) -> None:
    before = source_hashes(package)
    (package / name).write_text("", encoding="utf-8")
    after = source_hashes(package)
    assert [own for own in KERNELS if after[own] != before[own]] == [backend]


def test_figures_of_other_sources_are_stale(results: GpuResults) -> None:
    head = "Some GPU (R) 9, torch 2.11, 2026-01-02, tests: 9 passed, 0 failed, 1 skipped"
    assert gpu_table(results, SOURCES).splitlines()[0] == head
    assert gpu_table(results, SOURCES | {"cuda": "deg"}).splitlines()[0] == f"{head} — {STALE} cuda"


def test_the_table(results: GpuResults) -> None:
    first, *others = results.measurements
    cuda = measurement("cuda", 0.006, target=1.7)
    replayed = replace(results, suite=None, measurements=[replace(first, replayed_seconds=1.2e-4), cuda, *others])
    lines = gpu_table(replayed, SOURCES).splitlines()
    assert lines[0].endswith("tests: not run")
    case = "| t2i LSE forward, 128 by 128, bfloat16:"
    assert lines[4] == f"{case} triton | 3 | 0.12 | product | 1.50 (≤ 1.35) |  | 0.50 | 1.0e-03 | 48 |"
    assert lines[5] == f"{case} cuda | 6 |  | product | 3.00 (≤ 1.7) | 2.00 |  | 1.0e-03 | 48 |"
    # A hundred times the time for half of the pairs.
    assert lines[6] == f"{case} loop | 300 |  | product | 150.00 | 200.00 (≥ 150) | 100.00 | 1.0e-03 | 48 |"
    assert lines[-1] == "Without flash-maxsim: no module"
    assert missed_targets(replayed) == [
        "t2i LSE forward, 128 by 128, bfloat16: triton 1.50 × the floor, wanted 1.35",
        "t2i LSE forward, 128 by 128, bfloat16: cuda 3.00 × the floor, wanted 1.70",
    ]


def test_the_suite_counts_on_its_own_sources(tmp_path: Path) -> None:
    path = tmp_path / "suite.xml"
    assert suite_of(SOURCES, path) is None
    counts = 'tests="12" failures="1" errors="1" skipped="3"'
    path.write_text(f'<testsuites><testsuite name="{described(SOURCES)}" {counts}/></testsuites>', encoding="utf-8")
    assert suite_of(SOURCES, path) == {"passed": 7, "failed": 2, "skipped": 3}
    assert suite_of(SOURCES | {"cuda": "deg"}, path) is None


def test_a_backend_is_the_fastest_where_figures_of_these_sources_show_it(results: GpuResults) -> None:
    faster = replace(results, measurements=[measurement("triton", 0.003), measurement("cuda", 0.002)])
    assert doubts("cuda", "triton", [faster], SOURCES) == []
    none = ["no figures of these sources of 'cuda' and 'triton': make gpu"]
    assert doubts("cuda", "triton", [], SOURCES) == none
    assert doubts("cuda", "triton", [faster], SOURCES | {"triton": "abd"}) == none
    for suite in (None, SUITE | {"failed": 1}, SUITE | {"passed": 0}):
        untested = "some-gpu-r-9: the GPU suite did not pass on these sources"
        assert doubts("cuda", "triton", [replace(faster, suite=suite)], SOURCES) == [untested]
    case = "some-gpu-r-9: t2i LSE forward, 128 by 128, bfloat16"
    assert doubts("triton", "cuda", [faster], SOURCES) == [f"{case}: 0.003 s by 'triton', 0.002 s by 'cuda'"]
    assert doubts("cuda", "triton", [results], SOURCES) == [f"{case}: 'cuda' has no figure"]


def test_cuda_is_not_taken_before_figures_show_it_faster() -> None:
    """backend=None takes the first that serves. List "cuda", then `make gpu`: its figures are of the sources so."""
    order = FASTEST_FIRST["cuda"]
    recorded = report.recorded(report.ROOT)
    ahead = order[: order.index("triton")] if "triton" in order else order
    assert [reason for backend in ahead for reason in doubts(backend, "triton", recorded, source_hashes())] == []


def test_results_read_back(results: GpuResults, tmp_path: Path) -> None:
    path = tmp_path / f"{results.name}.json"
    write_gpu_results(results, path)
    assert path.name == "some-gpu-r-9.json"
    assert read_gpu_results(path) == results


@pytest.mark.parametrize("contents", ["{}", '{"measurements": []}', '{"measurements": [{}]}', '{"measurements": 1}'])
def test_another_file_is_no_result(contents: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(contents, encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.json: not the results"):
        read_gpu_results(path)


def test_the_readme_is_written_with_and_without_figures(results: GpuResults, package: Path) -> None:
    readme = package / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.record(package)
    assert readme.read_text(encoding="utf-8") == f"before\n{report.BEGIN}\n{report.PENDING}\n{report.END}\nafter\n"
    current = replace(results, sources=source_hashes(package))
    write_gpu_results(current, package / report.RESULTS / "gpu.json")
    (package / report.RESULTS / "cpu.json").write_text(json.dumps({"machine": {}}), encoding="utf-8")
    report.record(package)
    assert gpu_table(current, current.sources) in readme.read_text(encoding="utf-8")
    (package / "crossret_kernels/gpu/triton_tiles.py").write_text("", encoding="utf-8")
    report.record(package)
    assert STALE in readme.read_text(encoding="utf-8")


def test_the_command_line(package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "ROOT", package)
    monkeypatch.setattr(sys, "argv", ["report"])
    assert report.main() == 0
    assert capsys.readouterr().out == f"{report.PENDING}\n"
    readme = package / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["report", "--record"])
    assert report.main() == 0
    assert capsys.readouterr().out == "wrote README.md\n"
    assert report.PENDING in readme.read_text(encoding="utf-8")
    readme.unlink()
    assert report.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_readme_of_the_project_is_up_to_date() -> None:
    """Figures in it that kernels no longer give are marked: `python -m benchmarks.gpu.report --record`."""
    text = (report.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{report.BEGIN}\n{report.section(report.ROOT)}\n{report.END}" in text


class Clock:
    """Makes the calls, and says that they took 1, 2, 3, … milliseconds, over and over."""

    def __init__(self, *milliseconds: float) -> None:
        self.times = itertools.cycle([time / 1e3 for time in milliseconds])

    def __call__(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        for call in calls:
            call()
        return [next(self.times) for _ in calls]


def test_inputs_rotate_beyond_the_cache() -> None:
    assert copies(1) == MOST_COPIES
    assert copies(ROTATED_BYTES * 3) == 2
    assert all(copies(size) * size >= ROTATED_BYTES for size in (2**20, 5 * 2**20, 2**25, 2**28))
    made: list[int] = []
    seconds, rounds = median_seconds([lambda: made.append(0), lambda: made.append(1)], Clock(100.0, 300.0))
    assert rounds == 5
    assert made == [0, 1, 0, 1, 0, 1, 0, 1, 0]  # once each, the warm-up, five timed
    assert seconds == 0.1


def test_one_outlier_is_not_the_median() -> None:
    seconds, _ = median_seconds([lambda: None], Clock(100.0, 100.0, 100.0, 100.0, 5000.0, 100.0))
    assert seconds == 0.1


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("setting", ["t2i LSE", "i2t AVG", None])
def test_a_run(setting: str | None, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "torch" in the place of "triton"."""
    monkeypatch.setattr(inputs, "copies", lambda _: 2)
    names = ("torch", LOOP, "flash-maxsim") if setting is None else ("torch", LOOP)
    monkeypatch.setattr(implementations, "PEERS", {"flash-maxsim": "no_such_module"})
    regions = (5, 5) if setting else (2, 5)
    small = Case(4, 4, dim=16, regions=regions, words=(2, 6))
    case = ScoreCase(setting, small, "float32", names, training, {"torch": 1.2})
    *_, made = run.run([case], CPU, Clock(200.0))
    assert [m.implementation for m in made.measurements] == ["torch", LOOP]
    assert ("flash-maxsim" in made.missing) == (setting is None)
    ours = made.measurements[0]
    assert (ours.floor, ours.floor_ratio) == (("4 products", 0.25) if training else ("product", 1.0))
    assert ours.pairs == 16
    assert (ours.target, made.measurements[1].target) == (1.2, None)
    assert 0 <= ours.error < 1e-4
    assert made.sources == source_hashes()
    assert made.name == "cpu"


def test_wrong_scores_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ScoreCase("t2i LSE", Case(4, 4, dim=16, regions=(5, 5), words=(2, 6)), "float32", (LOOP,))
    monkeypatch.setattr(inputs, "copies", lambda _: 1)
    monkeypatch.setattr(scores, "scan", lambda name, options: lambda inputs: torch.zeros(4, 4))
    *_, made = run.run([case], CPU, Clock(200.0))
    assert not made.measurements
    ((name, reason),) = made.missing.items()
    assert name == "loop, t2i LSE forward, 4 × 5 by 4 × 2–6, D = 16, float32"
    assert reason.startswith("AssertionError: t2i LSE forward, 4 × 5 by 4 × 2–6, D = 16, float32: off by")


def test_what_fails_costs_no_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a run that ends early cost those before."""
    monkeypatch.setattr(inputs, "copies", lambda _: 1)
    monkeypatch.setattr(implementations, "scan_loop", lambda *_, **__: 1 / 0)
    small = Case(4, 4, dim=16, regions=(5, 5), words=(2, 6))
    cases = [ScoreCase(setting, small, "float32", (LOOP,)) for setting in ("t2i LSE", None)]
    first, second = (list(made.measurements) for made in run.run(cases, CPU, Clock(200.0)))
    assert not first
    assert [m.operation for m in second] == ["Sum-Max forward"]


@pytest.mark.parametrize("setting", ["t2i LSE", "i2t AVG", None])
def test_training_steps_that_round_similarities_are_measured_too(setting: str | None) -> None:
    """In bfloat16 they take other best contexts than float64; which hardest negative wins must not hang on that."""
    case = ScoreCase(setting, Case(16, 16, dim=128, regions=(36, 36), words=(6, 20)), "bfloat16", (), training=True)
    given = implementations.on_device(case.case.inputs(), CPU, torch.bfloat16)
    score = case.score("reference")
    assert 1e-4 < scores.error_of(case, score, given, case.tolerance(COMPILED))

    def wrong(items: Any) -> Any:
        return -score(items)

    with pytest.raises(AssertionError, match="off by 2"):
        scores.error_of(case, wrong, given, case.tolerance(COMPILED))


def test_slow_implementations_score_the_first_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "copies", lambda _: 1)
    case = ScoreCase("i2t AVG", Case(2, SAMPLED_CAPTIONS + 9, dim=16, regions=(5, 5)), "float32", ("torch", LOOP))
    *_, made = run.run([case], CPU, Clock(200.0))
    ours, theirs = made.measurements
    assert (ours.pairs, theirs.pairs) == (2 * (SAMPLED_CAPTIONS + 9), 2 * SAMPLED_CAPTIONS)
    assert theirs.floor_seconds == pytest.approx(0.2 * theirs.work / ours.work)


def test_others_are_wanted_to_be_slower(results: GpuResults) -> None:
    slow = measurement("loop", 0.3, slower={"triton": 200.0})
    fast = measurement("flash-maxsim", 0.002, slower={"triton": 1.0, "cuda": 1.0})
    made = replace(results, measurements=[measurement("triton", 0.003), measurement("cuda", 0.001), slow, fast])
    assert missed_targets(made) == [
        "t2i LSE forward, 128 by 128, bfloat16: triton 100 × as fast as loop, wanted 200",
        "t2i LSE forward, 128 by 128, bfloat16: triton 0.667 × as fast as flash-maxsim, wanted 1",
    ]


def test_the_floor_multiplies_valid_rows_alone() -> None:
    made = Case(3, 4, dim=8, regions=(2, 5), words=(1, 6)).inputs()
    regions, words = operands(made)
    assert regions.shape == (int(made.region_lengths.sum()), 8)
    assert 2 * len(regions) * len(words) * 8 == made.flop
    assert torch.equal(regions, made.packed_regions()[0])
    assert mask_of(made.words, made.word_lengths).sum(1).tolist() == made.word_lengths.tolist()


def test_the_targets_are_those_of_the_table() -> None:
    wanted = {(c.operation, c.precision, c.shape): c.targets for c in CASES if c.targets}
    whole = "1,000 × 36 by 5,000 × 6–20, D = 1024"
    for way in ("t2i LSE", "i2t AVG"):
        assert wanted[f"{way} forward", "bfloat16", whole] == {"triton": 1.35, "cuda": 1.7}
        assert wanted[f"{way} forward", "tf32", whole] == wanted[f"{way} forward", "float32", whole] == {"triton": 1.4}
        assert wanted[f"{way} training step", "bfloat16", "512 × 36 by 512 × 6–20, D = 1024"] == {"triton": 1.6}
        assert wanted[f"{way} listed pairs", "bfloat16", f"64 of every image, {whole}"] == {"cuda": 1.5}
    assert wanted["Sum-Max forward", "bfloat16", "1,000 × 300 by 1 × 32, D = 128"] == {"cuda": 1.5}
    for negatives in ("hardest", "sum", "softmax"):
        assert wanted[f"triplet_loss {negatives}, forward + backward", "float32", "8,192 × 8,192"] == {"cuda": 1.3}
    of_whole = [case for case in CASES if isinstance(case, ScoreCase) and case.shape == whole]
    slower = [(case.slower(LOOP), case.slower(COMPILED)) for case in of_whole if case.precision == "bfloat16"]
    assert slower == [({"triton": 200.0}, {"triton": 5.0})] * 2
    assert all({"triton", "cuda"} <= set(case.implementations) for case in CASES if not isinstance(case, MergeCase))
    rivals = [case for case in CASES if set(PEERS) <= set(case.implementations)]
    assert len(rivals) == 5
    assert all(case.slower(peer) == {"triton": 1.0, "cuda": 1.0} for case in rivals for peer in PEERS)


SMALL = Case(4, 5, dim=16, regions=(2, 5), words=(2, 6))


@pytest.mark.parametrize(
    ("case", "floor"),
    [
        (ScoreCase(None, SMALL, "float32", ("torch",), read=True), "one read"),
        (ListCase("t2i LSE", SMALL, "bfloat16", 3, ("torch",)), "all pairs"),
        (LossCase("softmax", 9, ("torch",)), "read + write"),
        (MergeCase(3, 20, 5, ("torch",)), "one read"),
    ],
    ids=["Sum-Max", "listed", "loss", "merge"],
)
def test_other_cases(case: GpuCase, floor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "copies", lambda _: 2)
    *_, made = run.run([case], CPU, Clock(200.0))
    assert made.missing == {}
    (ours,) = made.measurements
    assert (ours.implementation, ours.floor) == ("torch", floor)
    assert 0 <= ours.error < 1e-2


def test_listed_pairs_are_beside_their_share_of_all() -> None:
    work = ListCase("i2t AVG", SMALL, "float32", 5, ("torch",)).work(CPU)
    listed = work.calls("torch")
    assert (listed.pairs, len(listed.calls)) == (20, 1)
    assert listed.floor.times * SMALL.inputs().flop == pytest.approx(listed.work)


def test_wrong_results_of_other_cases_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "copies", lambda _: 1)
    monkeypatch.setattr("benchmarks.gpu.lists.scan_scores", lambda *_, pairs, **__: torch.rand(len(pairs)) * 9)
    monkeypatch.setitem(merges.MERGES, "torch", lambda values, indices, *_: (values, indices))
    cases = ListCase("t2i LSE", SMALL, "float32", 3, ("torch",)), MergeCase(3, 20, 5, ("torch",))
    *_, made = run.run(cases, CPU, Clock(200.0))
    assert not made.measurements
    assert [reason.partition(":")[0] for reason in made.missing.values()] == ["AssertionError"] * 2


def test_a_library_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CUDA_MISSING", "it was not built")
    *_, made = run.run([MergeCase(3, 20, 5, ("cuda",)), LossCase("sum", 4, ("cuda",))], CPU, Clock(200.0))
    assert made.missing == {"cuda": "it was not built"}
