"""The GPU benchmarks where there is no GPU: the sources' hash, stale figures, tables, runs by a made-up clock."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.gpu import implementations, inputs, lines, page, report, run, scores, session
from benchmarks.gpu.fastest import rows_of, text_of
from benchmarks.gpu.implementations import LOOP
from benchmarks.gpu.lists import ListCase
from benchmarks.gpu.losses import LossCase
from benchmarks.gpu.results import GpuResults, Measurement
from benchmarks.gpu.scores import ScoreCase
from benchmarks.gpu.sources import KERNELS, kernel_sources, source_hashes
from benchmarks.gpu.tables import STALE, gpu_table, missed_targets
from benchmarks.gpu.work import GpuCase
from benchmarks.report import PAGE
from crossret_kernels.fastest import TABLE

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
    assert "crossret_kernels/cross_attention/triton/forward.py" in triton - cuda
    assert {f"crossret_kernels/{name}.py" for name in ("gpu/sides", "gpu/planning", "inputs/ragged")} <= triton & cuda
    of_cuda = {path.relative_to(report.ROOT).as_posix() for path in (report.ROOT / "csrc").rglob("*.cu*")}
    assert (
        of_cuda | {"crossret_kernels/cross_attention/cuda/plan.py", "setup_cuda.py", "csrc/cuda/binding.cpp"}
        <= cuda - triton
    )
    assert not {name for name in triton | cuda if "chunked" in name or "reference" in name or name.endswith(".inl")}


def test_hashes_change_with_any_of_the_sources(package: Path) -> None:
    before = source_hashes(package)
    assert before == source_hashes()
    for name, changed in (
        ("crossret_kernels/cross_attention/triton/attention.py", ["triton"]),
        ("csrc/cross_attention/cuda_more.cu", ["cuda"]),  # which is new
        ("crossret_kernels/gpu/planning.py", ["triton", "cuda"]),
        ("csrc/maxsim/best.inl", []),
    ):
        with (package / name).open("a", encoding="utf-8") as file:
            file.write("\n")
        after = source_hashes(package)
        assert [backend for backend in KERNELS if after[backend] != before[backend]] == changed
        before = after


def test_figures_of_other_sources_are_stale_and_missed_targets_are_named(results: GpuResults) -> None:
    assert STALE not in gpu_table(results, SOURCES)
    assert f"{STALE} cuda" in gpu_table(results, SOURCES | {"cuda": "deg"}).splitlines()[0]
    slow = measurement("flash-maxsim", 0.002, slower={"triton": 1.0, "cuda": 1.0})
    assert missed_targets(replace(results, measurements=[*results.measurements, slow])) == [
        "t2i LSE forward, 128 by 128, bfloat16: triton 1.50 × the floor, wanted 1.35",
        "t2i LSE forward, 128 by 128, bfloat16: triton 0.667 × as fast as flash-maxsim, wanted 1",
    ]


def test_the_table_by_which_backends_are_chosen_is_that_of_the_records() -> None:
    """`python -m benchmarks.gpu.fastest` writes it."""
    assert TABLE.read_text(encoding="utf-8") == text_of(report.recorded(report.ROOT))


def test_a_case_that_one_backend_alone_has_is_no_row(results: GpuResults) -> None:
    assert list(rows_of([results])) == []
    both = replace(results, measurements=[*results.measurements, measurement("cuda", 0.002, work=4000)])
    assert list(rows_of([both])) == [["Some GPU (R) 9", "9.0", "2026-01-02", "t2i", "bfloat16", False, False, 1.5]]


def test_the_page_of_the_project_is_up_to_date() -> None:
    """Figures in it that kernels no longer give are marked: `python -m benchmarks.gpu.report --record`."""
    text = (report.ROOT / PAGE).read_text(encoding="utf-8")
    assert f"{report.BEGIN}\n{report.section(report.ROOT)}\n{report.END}" in text


class Clock:
    """Makes the calls, and says that they took 1, 2, 3, … milliseconds, over and over."""

    def __init__(self, *milliseconds: float) -> None:
        self.times = itertools.cycle([time / 1e3 for time in milliseconds])

    def __call__(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        for call in calls:
            call()
        return [next(self.times) for _ in calls]


RATES = dict.fromkeys(("read", "copy", "bfloat16", "tf32", "float32"), 1e6)


def run_of(*cases: GpuCase, ends: float = float("inf")) -> tuple[list[Measurement], dict[str, str]]:
    """What was measured, and what was not and why."""
    made = list(run.run(cases, CPU, Clock(200.0), RATES, ends))
    return [m for m in made if isinstance(m, Measurement)], dict(m for m in made if not isinstance(m, Measurement))


@pytest.mark.parametrize(("setting", "training"), [("t2i LSE", False), ("i2t AVG", True), (None, True)])
def test_a_run(setting: str | None, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "torch" in the place of "triton"."""
    monkeypatch.setattr(inputs, "copies", lambda _: 2)
    names = ("torch", LOOP, "flash-maxsim") if setting is None else ("torch", LOOP)
    monkeypatch.setattr(implementations, "PEERS", {"flash-maxsim": "no_such_module"})
    regions = (5, 5) if setting else (2, 5)
    small = Case(4, 4, dim=16, regions=regions, words=(2, 6))
    case = ScoreCase(setting, small, "float32", names, training, {"torch": 1.2})
    made, missing = run_of(case)
    assert [m.implementation for m in made] == ["torch", LOOP]
    assert ("flash-maxsim" in missing) == (setting is None)
    ours = made[0]
    flop = small.inputs().flop
    assert (ours.floor, ours.work) == ("4 products" if training else "product", flop)
    assert ours.floor_ratio == pytest.approx(0.2 / ((4 if training else 1) * flop / 1e6))  # of the card's rate
    assert ours.pairs == 16
    assert (ours.target, made[1].target) == (1.2, None)
    assert ours.error is not None
    assert 0 <= ours.error < 1e-4


def test_what_fails_costs_no_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "copies", lambda _: 1)
    monkeypatch.setattr(implementations, "scan_loop", lambda *_, **__: 1 / 0)
    small = Case(4, 4, dim=16, regions=(5, 5), words=(2, 6))
    cases = [ScoreCase(setting, small, "float32", (LOOP,)) for setting in ("t2i LSE", None)]
    made, missing = run_of(*cases)
    assert [m.operation for m in made] == ["Sum-Max forward"]
    assert [reason.partition(":")[0] for reason in missing.values()] == ["ZeroDivisionError"]
    made, missing = run_of(*cases, ends=0.0)
    assert (made, list(missing)) == ([], ["time"])


SMALL = Case(4, 5, dim=16, regions=(2, 5), words=(2, 6))


@pytest.mark.parametrize(
    ("case", "floor"),
    [
        (ScoreCase(None, SMALL, "float32", ("torch",), read=True), "one read"),
        (ListCase("t2i LSE", SMALL, "bfloat16", 3, ("torch",)), "all pairs"),
        (LossCase("softmax", 9, ("torch",)), "read + write"),
    ],
    ids=["Sum-Max", "listed", "loss"],
)
def test_other_cases(case: GpuCase, floor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "copies", lambda _: 2)
    made, missing = run_of(case)
    assert missing == {}
    (ours,) = made
    assert (ours.implementation, ours.floor) == ("torch", floor)
    assert ours.error is not None
    assert 0 <= ours.error < 1e-2


def test_wrong_results_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "copies", lambda _: 1)
    monkeypatch.setattr("benchmarks.gpu.lists.scan_scores", lambda *_, pairs, **__: torch.rand(len(pairs)) * 9)
    monkeypatch.setattr(scores, "scan", lambda name, options: lambda inputs: torch.zeros(4, 5))
    cases = ListCase("t2i LSE", SMALL, "float32", 3, ("torch",)), ScoreCase("t2i LSE", SMALL, "float32", (LOOP,))
    made, missing = run_of(*cases)
    assert not made
    assert [reason.partition(":")[0] for reason in missing.values()] == ["AssertionError"] * 2


STAGE = """
import sys, time
from benchmarks.gpu.lines import tell
tell("figures", "begun", number=1)
time.sleep(float(sys.argv[1]))
tell("figures", "ended", number=2)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def results_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run leaves what it finds, its stages too."""
    monkeypatch.setenv("RESULTS", str(tmp_path))
    for name in (lines, session, page):
        monkeypatch.setattr(name, "RESULTS", tmp_path)
    monkeypatch.setattr(session, "lacking", lambda: ["no_such_package"])
    monkeypatch.setattr("sys.argv", ["session"])
    return tmp_path


def stages(*of_stages: tuple[float, float, int]) -> list[session.Stage]:
    """Of so many seconds' share that sleep so long, and exit so."""
    return [
        session.Stage(f"stage {number}", share, ("-c", STAGE, str(sleep), str(status)))
        for number, (share, sleep, status) in enumerate(of_stages)
    ]


def test_a_stage_that_is_cut_or_fails_keeps_what_it_told_and_the_next_one_runs(
    results_here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "stages", lambda: stages((4, 0, 1), (4, 1000, 0), (30, 0, 0)))
    monkeypatch.setenv("SECONDS", "40")
    assert session.main() == 1
    ended = [line["ended"] for line in lines.told(results_here, "session") if "ended" in line]
    assert ended == ["failed (1)", "cut at the end of its time", "done"]
    assert [line["number"] for line in lines.told(results_here, "figures")] == [1, 2, 1, 1, 2]
    out = capfd.readouterr().out
    assert "missing here, and so are figures that need it: no_such_package" in out
    assert (results_here / session.LOG).read_text().count("begun") == 3
    assert "stage 1: cut at the end of its time" in (results_here / page.PAGE).read_text()


def test_a_line_that_was_cut_costs_no_other(results_here: Path) -> None:
    lines.tell("checks", "right", right=True)
    with (results_here / lines.LINES).open("a") as file:
        file.write('{"stage": "che')
    assert [line["text"] for line in lines.told(results_here)] == ["right"]


def test_the_page_has_ratios_changes_and_failures(results_here: Path, results: GpuResults) -> None:
    assert page.results_of(results_here) is None
    head = {"date": results.date, "device": results.device, "versions": results.versions, "sources": SOURCES}
    lines.tell("figures", "a card", head=head)
    for m in results.measurements:
        lines.tell("figures", run.text_of(m), measurement=asdict(m))
    lines.tell("figures", "without flash-maxsim", missing=["flash-maxsim", "no module"])
    lines.tell("checks", "triton scan_scores: WRONG 1.0e-01 (≤ 1.0e-02)", right=False)
    (results_here / "suite.xml").write_text(
        '<testsuites><testsuite tests="10" failures="0" errors="0" skipped="1"/></testsuites>'
    )
    assert page.results_of(results_here) == results
    text = "\n".join(page.lines_of(results_here))
    assert "| t2i LSE forward, 128 by 128, bfloat16 | triton | 3 | 1.50 | 1.35 |" in text
    assert text.endswith("## Failed\ntriton scan_scores: WRONG 1.0e-01 (≤ 1.0e-02)\nwithout flash-maxsim")


def test_every_stage_can_be_named(results_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["session", "figurse"])
    assert session.main() == 2
    for stage in session.stages():
        if stage.arguments[1].startswith("benchmarks."):
            assert find_spec(stage.arguments[1]) is not None
