"""The benchmarks' report: tables and plot from a run's JSON, nothing of the machine's names in what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import chart, report
from benchmarks.results import Measurement, read_results, write_results
from benchmarks.tables import terminal_table

SECRET = "somebodys-machine"
FLOP = 8_000_000
# Seconds of a call for 128 × 128 pairs, and how many of those a call scores.
TIMES = {"torch.mm": (0.016384, 1.0), "loop": (0.16384, 1.0), "einsum": (0.016384, 0.125), "cpu avx2": (0.008192, 1.0)}


def benchmark(implementation: str, operation: str, threads: int = 2, size: int = 128) -> dict[str, Any]:
    """An entry as pytest-benchmark writes it."""
    seconds, share = TIMES[implementation]
    pairs = int(size * size * share)
    return {
        "group": SECRET,
        "name": SECRET,
        "fullname": SECRET,
        "options": {"timer": SECRET},
        "extra_info": {
            "operation": operation,
            "case": f"{size} by {size}",
            "shape": "36 regions × 6–20 words, D = 1024",
            "images": size,
            "captions": size,
            "dtype": "float32",
            "threads": threads,
            "implementation": implementation,
            "pairs": pairs,
            "flop": int(FLOP * share),
            "bytes": 4 * pairs,
            "peak_mebibytes": 1.5,
            "floor_seconds": 0.004096 * share,
            "floor_ratio": 2.0,
            "read_seconds": (0.004096 if operation == "Sum-Max" else 0.001) * share,
            "directory": f"/home/{SECRET}",
        },
        "stats": {"median": seconds, "rounds": 5, "data": [seconds] * 5},
    }


def memory_alone() -> dict[str, Any]:
    noted = {"operation": "backward", "case": "512 by 512", "images": 512, "captions": 512, "dtype": "float32"}
    noted |= {
        "shape": "36 regions × 20 words, D = 1024",
        "threads": 2,
        "implementation": "cpu avx2",
        "peak_mebibytes": 61.5,
    }
    return {"extra_info": noted, "stats": {"median": 5.0, "rounds": 1}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    entries = [benchmark(name, "t2i LSE forward") for name in TIMES]
    entries += [benchmark("cpu avx2", "Sum-Max"), memory_alone(), benchmark("torch.mm", "t2i LSE forward", threads=1)]
    entries += [benchmark(name, "t2i LSE, by batch size", size=size) for name in TIMES for size in (64, 128)]
    machine = {"processor": "Some (R) CPU", "cores": 2, "python": "3.10", "torch": "2.11", "isas": "avx2"}
    contents = {
        "machine_info": machine | {"node": SECRET},
        "commit_info": {"project": SECRET},
        "datetime": "2026-01-02T03:04:05+00:00",
        "benchmarks": entries,
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(contents), encoding="utf-8")
    return path


def line_of(table: str, heading: str, implementation: str) -> list[str]:
    """Cells of an implementation's line under the heading that begins so."""
    rows = table[table.index(heading) :].splitlines()[1:]
    return next(row for row in rows if row.startswith(f"  {implementation}"))[len(implementation) + 2 :].split()


def test_ratios_of_the_terminal_table(run: Path) -> None:
    table = terminal_table(read_results(run))
    heading = "t2i LSE forward: 128 by 128, float32, 2 threads"
    # 8.192 ms for 16,384 pairs: half a microsecond a pair, twice the floor, half of torch.mm, a twentieth of the loop.
    assert line_of(table, heading, "cpu avx2") == ["8.19", "0.50", "0.98", "2.00", "–", "0.50", "20.0", "1.5"]
    # An eighth of the pairs in the time of torch.mm: ratios are per pair.
    assert line_of(table, heading, "einsum")[1:] == ["8.00", "0.0610", "32.0", "–", "8.00", "1.25", "1.5"]


def test_what_is_kept_reads_back_and_names_nobody(run: Path, tmp_path: Path) -> None:
    results = read_results(run)
    path = tmp_path / f"{results.name}.json"
    write_results(results, path)
    assert path.name == "2026-01-02-some-r-cpu.json"
    text = path.read_text(encoding="utf-8")
    assert SECRET not in text
    assert set(json.loads(text)["measurements"][0]) <= set(Measurement.__annotations__)
    assert read_results(path) == results


def test_record_writes_files_and_the_page_between_its_markers(run: Path, tmp_path: Path) -> None:
    page = tmp_path / report.PAGE
    (page.parent / "assets").mkdir(parents=True)
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    kept, picture, _ = report.record(run, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{report.BEGIN}\n| µs a pair |")
    assert "\n\nSome (R) CPU, 2 cores, torch 2.11, 2026-01-02, 2 threads.\n\n![" in text
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert f"]({picture.relative_to(page.parent).as_posix()})" in text
    assert read_results(kept) == read_results(run)
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert image.width > 1000


def test_the_page_of_the_project_has_the_markers() -> None:
    assert "| new |" in report.with_section(report.ROOT, "| new |")


def test_the_chart_has_a_bar_for_every_training_step_of_the_newest_records() -> None:
    found, where = chart.bars(report.ROOT)
    assert len(found) == 5
    assert all(theirs > ours > 0 for bar in found for theirs, ours in (bar.milliseconds, bar.mebibytes))
    assert "threads" in where
