"""How fast a training is by how OpenMP's threads wait for each other, on an idle machine and beside a busy process.

    python -m benchmarks.waiting SCENES --output DIR

Each policy trains scan with its preset for rendered scenes, on as many threads as the process has cores; captions
trained a second are medians over epochs but the first. The policies take turns, so that what else the machine does
meets all of them. `crossret.__main__` chooses the policy of the command by these figures.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import track

from crossret.files.atomic import atomic_write
from crossret.files.json import write_json
from crossret.machine import describe_machine

# Environment of each; libgomp's own is a spin of 300,000 rounds.
POLICIES = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    **{f"a spin of {rounds:,}": {"GOMP_SPINCOUNT": str(rounds)} for rounds in (10_000, 4_000, 2_000, 1_000)},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
LOADS = {"idle": 0, "beside a busy process": 1}
_SET_ELSEWHERE = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
_BUSY = "while True: pass"


def measure(scenes: Path, *, epochs: int, repeats: int) -> dict[str, dict[str, float]]:
    """Captions trained a second, by load and policy."""
    turns = [(load, policy) for load in LOADS for _ in range(repeats) for policy in POLICIES]
    rates: dict[str, dict[str, list[float]]] = {load: {policy: [] for policy in POLICIES} for load in LOADS}
    for load, policy in track(turns, "training"):
        with busy_processes(LOADS[load]):
            rates[load][policy] += training_rates(scenes, epochs, POLICIES[policy])
    return {load: {policy: statistics.median(found) for policy, found in each.items()} for load, each in rates.items()}


def training_rates(scenes: Path, epochs: int, policy: Mapping[str, str]) -> list[float]:
    """Captions trained a second in each epoch of a training but the first."""
    environment = {name: value for name, value in os.environ.items() if name not in _SET_ELSEWHERE} | dict(policy)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "crossret", "train", str(scenes), "--output", directory, "--device", "cpu"]
        options = ["--preset", "scenes", "--epochs", str(epochs)]
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=True)
    rates = [
        float(rate.replace(",", ""))
        for rate in re.findall(r"^epoch \d+ .* ([\d,]+) captions/s", done.stderr, re.MULTILINE)
    ]
    return rates[1:] or rates


@contextmanager
def busy_processes(processes: int) -> Iterator[None]:
    """So many processes that compute meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def markdown(report: Mapping[str, Any]) -> str:
    """The figures as a table, each beside its ratio to libgomp's own policy."""
    machine, rates = report["machine"], report["captions_per_second"]
    first = next(iter(POLICIES))
    lines = [
        f"Captions trained a second, scan on rendered scenes: {machine['cpu']}, {machine['threads']} threads, "
        f"torch {machine['torch']}.",
        "",
        f"| threads wait by | {' | '.join(LOADS)} |",
        f"|---|{'---:|' * len(LOADS)}",
    ]
    for policy in POLICIES:
        cells = [f"{rates[load][policy]:,.0f} ({rates[load][policy] / rates[load][first]:.2f} ×)" for load in LOADS]
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write waiting.json and waiting.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path, help="what `crossret render-scenes` wrote")
    parser.add_argument("--output", type=Path, required=True, help="directory of the figures, made if absent")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    rates = measure(arguments.scenes, epochs=arguments.epochs, repeats=arguments.repeats)
    report = {"machine": describe_machine(), "captions_per_second": rates}
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output / "waiting.json", report)
    with atomic_write(arguments.output / "waiting.md") as file:
        file.write(markdown(report).encode())
    print(markdown(report))


if __name__ == "__main__":
    main()
