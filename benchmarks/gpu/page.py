"""The report of a run on a GPU on one page, of what it left: python -m benchmarks.gpu.page [DIRECTORY] [--record].

--record keeps the figures under benchmarks/results, of one file a card, and writes docs/benchmarks.md and the table by
which backends are chosen.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from benchmarks.gpu import fastest, report
from benchmarks.gpu.lines import RESULTS, told
from benchmarks.gpu.results import GpuResults, Measurement, read_gpu_results, write_gpu_results
from benchmarks.gpu.sources import ROOT

PAGE = "report.md"
CHANGED = 1.1  # times as fast or slow as before is told


def results_of(directory: Path) -> GpuResults | None:
    """The figures of a run; None where it has none."""
    head: dict[str, Any] = {}
    measurements: dict[tuple[str, ...], Measurement] = {}
    missing: dict[str, str] = {}
    for line in told(directory, "figures"):
        head = line.get("head", head)
        if "measurement" in line:
            made = Measurement(**line["measurement"])
            measurements[(*made.group, made.implementation)] = made
        if "missing" in line:
            missing[line["missing"][0]] = line["missing"][1]
    if not head or not measurements:
        return None
    return GpuResults(**head, suite=suite_of(directory), missing=missing, measurements=list(measurements.values()))


def suite_of(directory: Path) -> dict[str, int] | None:
    """How many tests of the suite passed, failed and were skipped; None where none ran to its end."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    found = [path for name in ("suite", "memory") if (path := directory / f"{name}.xml").is_file()]
    for path in found:
        suite = ET.parse(path).getroot().find("testsuite")
        assert suite is not None, path
        tests, failures, errors, skipped = (int(suite.get(x, 0)) for x in ("tests", "failures", "errors", "skipped"))
        for name, count in (
            ("passed", tests - failures - errors - skipped),
            ("failed", failures + errors),
            ("skipped", skipped),
        ):
            counts[name] += count
    return counts if found else None


def lines_of(directory: Path) -> list[str]:
    """Ratios to the floors, what failed, what changed since the last record of that card."""
    results = results_of(directory)
    lines = ["# Run on a GPU", ""]
    lines += [f"- {line['text']}" for stage in ("warpgroups", "facts") for line in told(directory, stage)]
    if results is not None:
        before = recorded(results)
        lines += ["", "| case | implementation | ms | ÷ floor | wanted | before |", "|---|---|---:|---:|---:|---:|"]
        for m in results.measurements:
            earlier = before.get((*m.group, m.implementation))
            change = "" if earlier is None else f"{earlier * 1e3:.3g} ms"
            wanted = "" if m.target is None else f"{m.target:.2f}"
            figures = f"{m.seconds * 1e3:.3g} | {m.floor_ratio:.2f} | {wanted} | {change}"
            lines.append(f"| {', '.join(m.group)} | {m.implementation} | {figures} |")
        lines += ["", f"tests: {results.suite}"]
    stages = [line["text"] for line in told(directory, "session") if "ended" in line]
    failed = [line["text"] for line in told(directory) if line.get("right") is False or "FAILED" in line["text"]]
    failed += [line["text"] for line in told(directory, "figures") if "missing" in line]
    return [*lines, "", "## Stages", *stages, "", "## Failed", *(failed or ["nothing"])]


def recorded(results: GpuResults) -> dict[tuple[str, ...], float]:
    """Seconds of the last record of that card, by case and implementation."""
    path = ROOT / report.RESULTS / f"{results.name}.json"
    if not path.is_file():
        return {}
    return {(*m.group, m.implementation): m.seconds for m in read_gpu_results(path).measurements}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    text = "\n".join(lines_of(arguments.directory)) + "\n"
    print(text)
    if not arguments.record:
        (arguments.directory / PAGE).write_text(text, encoding="utf-8")
    elif (results := results_of(arguments.directory)) is not None:
        write_gpu_results(results, ROOT / report.RESULTS / f"{results.name}.json")
        fastest.main()
        report.record(ROOT)


if __name__ == "__main__":
    main()
