"""The page's part on GPUs, from the files under results/: python -m benchmarks.gpu.report [--record].

Without --record it is printed. Figures of other kernels than today's are marked as stale; without any it says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.gpu.results import GpuResults, read_gpu_results
from benchmarks.gpu.sources import ROOT, source_hashes
from benchmarks.gpu.tables import gpu_table
from benchmarks.report import RESULTS, command_line, print_report, with_section, write_page

BEGIN, END = "<!-- benchmarks on GPUs: written by make gpu -->", "<!-- /benchmarks on GPUs -->"
PENDING = "Figures of the GPU kernels are pending: no GPU was at hand yet. `make gpu` makes them."


def recorded(root: Path) -> list[GpuResults]:
    """Records of runs on GPUs under results/, beside those of CPUs."""
    paths = sorted((root / RESULTS).glob("*.json"))
    return [read_gpu_results(path) for path in paths if "sources" in json.loads(path.read_text(encoding="utf-8"))]


def section(root: Path) -> str:
    """A table for every GPU, or that there is none."""
    sources = source_hashes(root)
    return "\n\n".join(gpu_table(results, sources) for results in recorded(root)) or PENDING


def record(root: Path) -> Path:
    """Writes the section into the page of benchmarks; returns where that is."""
    return write_page(root, with_section(root, section(root), BEGIN, END))


def lines_of(arguments: argparse.Namespace) -> list[str]:
    return [f"wrote {record(ROOT).name}" if arguments.record else section(ROOT)]


def main() -> int:
    return print_report(command_line(__doc__), lines_of)


if __name__ == "__main__":
    sys.exit(main())
