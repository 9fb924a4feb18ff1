"""The GPU benchmarks where there is no GPU: the sources' hash, stale figures, tables, runs by a made-up clock."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cases import Case
from benchmarks.gpu import implementations, report, run
from benchmarks.gpu.cases import CASES, SAMPLED_CAPTIONS, GpuCase
from benchmarks.gpu.implementations import COMPILED, LOOP, PEERS, mask_of, operands
from benchmarks.gpu.results import GpuResults, Measurement, read_gpu_results, write_gpu_results
from benchmarks.gpu.sources import kernel_sources, sources_hash
from benchmarks.gpu.tables import STALE, gpu_table, missed_targets
from benchmarks.gpu.timing import MOST_COPIES, ROTATED_BYTES, copies, median_seconds

CPU = torch.device("cpu")


def measurement(implementation: str, seconds: float, **others: Any) -> Measurement:
    known: dict[str, Any] = {
        "operation": "t2i LSE forward", "case": "128 by 128", "precision": "bfloat16", "pairs": 128 * 128,
        "flop": 8000, "products": 1, "rounds": 9, "floor_seconds": 0.002, "error": 1e-3, "peak_mebibytes": 48.0,
    }  # fmt: skip
    return Measurement(implementation=implementation, seconds=seconds, **known | others)


@pytest.fixture
def results() -> GpuResults:
    measurements = [
        measurement("triton", 0.003, target=1.35),
        measurement("loop", 0.3, pairs=128 * 64, flop=4000),
    ]
    device = {"name": "Some GPU (R) 9", "capability": "9.0", "mebibytes": 1000}
    return GpuResults("2026-01-02", device, {"torch": "2.11"}, "abc", {"flash-maxsim": "no module"}, measurements)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources, to be changed."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(report.ROOT / "crossret_kernels", tmp_path / "crossret_kernels", ignore=ignored)
    return tmp_path


def test_sources_are_the_kernels_and_what_they_are_built_on() -> None:
    names = {path.relative_to(report.ROOT).as_posix() for path in kernel_sources()}
    assert {
        f"crossret_kernels/{name}.py" for name in ("triton_tiles", "triton_launch", "gpu_sides", "kept_plans")
    } <= names
    assert "crossret_kernels/cross_attention/triton/forward.py" in names
    assert not {name for name in names if "chunked" in name or "reference" in name}


@pytest.mark.parametrize("name", ["cross_attention/triton/attention.py", "kept_plans.py"])
def test_the_hash_changes_with_any_of_the_sources(name: str, package: Path) -> None:
    before = sources_hash(package)
    assert before == sources_hash()
    path = package / "crossret_kernels" / name
    path.write_text(path.read_text(encoding="utf-8") + "#", encoding="utf-8")
    assert sources_hash(package) != before


def test_the_hash_stays_where_other_sources_change_and_counts_new_kernels(package: Path) -> None:
    before = sources_hash(package)
    (package / "crossret_kernels/cross_attention/reference.py").write_text("", encoding="utf-8")
    assert sources_hash(package) == before
    (package / "crossret_kernels/ranking_loss/triton.py").write_text("", encoding="utf-8")
    assert sources_hash(package) != before


def test_figures_of_other_sources_are_stale(results: GpuResults) -> None:
    assert STALE not in gpu_table(results, "abc")
    assert gpu_table(results, "abd").splitlines()[0] == f"Some GPU (R) 9, torch 2.11, 2026-01-02 — {STALE}"


def test_the_table(results: GpuResults) -> None:
    first, *others = results.measurements
    replayed = replace(results, measurements=[replace(first, replayed_seconds=1.2e-4), *others])
    lines = gpu_table(replayed, "abc").splitlines()
    assert lines[4] == "| t2i LSE forward, 128 by 128, bfloat16: triton | 3 | 0.12 | 1.50 | 1.35 |  | 1.0e-03 | 48 |"
    # A hundred times the time for half of the pairs.
    assert lines[5] == "| t2i LSE forward, 128 by 128, bfloat16: loop | 300 |  | 150.00 |  | 200.0 | 1.0e-03 | 48 |"
    assert lines[-1] == "Without flash-maxsim: no module"
    assert missed_targets(results) == ["t2i LSE forward, 128 by 128, bfloat16: 1.50 × the floor, wanted 1.35"]


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
    current = replace(results, sources=sources_hash(package))
    write_gpu_results(current, package / report.RESULTS / "gpu.json")
    (package / report.RESULTS / "cpu.json").write_text(json.dumps({"machine": {}}), encoding="utf-8")
    report.record(package)
    assert gpu_table(current, current.sources) in readme.read_text(encoding="utf-8")
    (package / "crossret_kernels/triton_tiles.py").write_text("", encoding="utf-8")
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
    monkeypatch.setattr(implementations, "FUSED", "torch")
    monkeypatch.setattr(run, "copies", lambda _: 2)
    names = ("torch", LOOP, "flash-maxsim") if setting is None else ("torch", LOOP)
    monkeypatch.setattr(implementations, "PEERS", {"flash-maxsim": "no_such_module"})
    regions = (5, 5) if setting else (2, 5)
    case = GpuCase(setting, Case(4, 4, dim=16, regions=regions, words=(2, 6)), "float32", names, training, target=1.2)
    *_, made = run.run([case], CPU, Clock(200.0))
    assert [m.implementation for m in made.measurements] == ["torch", LOOP]
    assert ("flash-maxsim" in made.missing) == (setting is None)
    ours = made.measurements[0]
    assert (ours.products, ours.floor_ratio) == ((4, 0.25) if training else (1, 1.0))
    assert ours.pairs == 16
    assert (ours.target, made.measurements[1].target) == (1.2, None)
    assert 0 <= ours.error < 1e-4
    assert made.sources == sources_hash()
    assert made.name == "cpu"


def test_wrong_scores_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = GpuCase("t2i LSE", Case(4, 4, dim=16, regions=(5, 5), words=(2, 6)), "float32", (LOOP,))
    monkeypatch.setattr(run, "copies", lambda _: 1)
    monkeypatch.setattr(run, "scan", lambda name, options: lambda inputs: torch.zeros(4, 4))
    *_, made = run.run([case], CPU, Clock(200.0))
    assert not made.measurements
    ((name, reason),) = made.missing.items()
    assert name == "loop, t2i LSE forward, 4 × 5 by 4 × 2–6, D = 16, float32"
    assert reason.startswith("AssertionError: t2i LSE forward, 4 × 5 by 4 × 2–6, D = 16, float32: off by")


def test_what_fails_costs_no_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a run that ends early cost those before."""
    monkeypatch.setattr(run, "copies", lambda _: 1)
    monkeypatch.setattr(implementations, "scan_loop", lambda *_, **__: 1 / 0)
    small = Case(4, 4, dim=16, regions=(5, 5), words=(2, 6))
    cases = [GpuCase(setting, small, "float32", (LOOP,)) for setting in ("t2i LSE", None)]
    first, second = (list(made.measurements) for made in run.run(cases, CPU, Clock(200.0)))
    assert not first
    assert [m.operation for m in second] == ["Sum-Max forward"]


@pytest.mark.parametrize("setting", ["t2i LSE", "i2t AVG", None])
def test_training_steps_that_round_similarities_are_measured_too(setting: str | None) -> None:
    """In bfloat16 they take other best contexts than float64; which hardest negative wins must not hang on that."""
    case = GpuCase(setting, Case(16, 16, dim=128, regions=(36, 36), words=(6, 20)), "bfloat16", (), training=True)
    inputs = implementations.on_device(case.case.inputs(), CPU, torch.bfloat16)
    score = implementations.maxsim("reference") if setting is None else implementations.scan("reference", case.options)
    assert 1e-4 < run.error_of(case, score, inputs, run.tolerance_of(case, COMPILED))

    def wrong(inputs: Any) -> Any:
        return -score(inputs)

    with pytest.raises(AssertionError, match="off by 2"):
        run.error_of(case, wrong, inputs, run.tolerance_of(case, COMPILED))


def test_slow_implementations_score_the_first_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "copies", lambda _: 1)
    monkeypatch.setattr(implementations, "FUSED", "torch")
    case = GpuCase("i2t AVG", Case(2, SAMPLED_CAPTIONS + 9, dim=16, regions=(5, 5)), "float32", ("torch", LOOP))
    *_, made = run.run([case], CPU, Clock(200.0))
    ours, theirs = made.measurements
    assert (ours.pairs, theirs.pairs) == (2 * (SAMPLED_CAPTIONS + 9), 2 * SAMPLED_CAPTIONS)
    assert theirs.floor_seconds == pytest.approx(0.2 * theirs.flop / ours.flop)


def test_others_are_wanted_to_be_slower(results: GpuResults) -> None:
    slow, fast = measurement("loop", 0.3, slower=200.0), measurement("flash-maxsim", 0.002, slower=1.0)
    made = replace(results, measurements=[measurement("triton", 0.003), slow, fast])
    assert missed_targets(made) == [
        "t2i LSE forward, 128 by 128, bfloat16: 100 × as fast as loop, wanted 200",
        "t2i LSE forward, 128 by 128, bfloat16: 0.667 × as fast as flash-maxsim, wanted 1",
    ]


def test_the_floor_multiplies_valid_rows_alone() -> None:
    inputs = Case(3, 4, dim=8, regions=(2, 5), words=(1, 6)).inputs()
    regions, words = operands(inputs)
    assert regions.shape == (int(inputs.region_lengths.sum()), 8)
    assert 2 * len(regions) * len(words) * 8 == inputs.flop
    assert torch.equal(regions, inputs.packed_regions()[0])
    assert mask_of(inputs.words, inputs.word_lengths).sum(1).tolist() == inputs.word_lengths.tolist()


def test_the_targets_are_those_of_the_table() -> None:
    wanted = {(c.operation, c.precision, c.case.n_images): c.target for c in CASES if c.target}
    assert wanted["t2i LSE forward", "bfloat16", 1000] == wanted["i2t AVG forward", "bfloat16", 1000] == 1.35
    assert wanted["t2i LSE forward", "tf32", 1000] == wanted["t2i LSE forward", "float32", 1000] == 1.4
    assert wanted["i2t AVG training step", "bfloat16", 512] == 1.6
    whole = [case for case in CASES if case.case.n_images == 1000 and case.precision == "bfloat16" and case.setting]
    assert [(case.slower(LOOP), case.slower(COMPILED)) for case in whole] == [(200.0, 5.0)] * 2
    assert all({LOOP, COMPILED} <= set(case.implementations) for case in whole)
    assert all(case.slower(peer) == 1.0 for case in CASES for peer in PEERS)
    assert sum(set(PEERS) <= set(case.implementations) for case in CASES) == 5
    assert all(math.isfinite(case.case.inputs().flop) for case in CASES if case.case.n_images <= 128)
