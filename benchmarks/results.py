"""Figures of a benchmark run: read from pytest-benchmark's JSON, kept without the names of the machine."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossret.files.atomic import atomic_write
from crossret.files.json import parse_json_object

PRODUCT = "torch.mm"
LOOP = "loop"
MACHINE = ("processor", "cores", "python", "torch", "isas")


@dataclass(frozen=True)
class Measurement:
    """One implementation of one case. A sample of the case's captions may stand for all: `pairs` says how many."""

    operation: str
    case: str
    shape: str  # sizes that its pairs have in common
    images: int
    captions: int
    dtype: str
    threads: int
    implementation: str
    seconds: float  # median of a call
    rounds: int
    peak_mebibytes: float  # beyond inputs and results
    pairs: int | None = None  # None where memory alone was measured
    products: int = 1  # similarity products in `floor_seconds`: more than one make a yardstick, not a bound
    flop: int | None = None  # operations of one similarity product
    bytes: int | None = None  # bytes of features and scores and, in a training step, of their gradients
    floor_seconds: float | None = None  # the products' operations at the rate of register arithmetic
    read_seconds: float | None = None  # the bytes read once from memory

    @property
    def group(self) -> tuple[str, str, str, int]:
        return self.operation, self.case, self.dtype, self.threads


@dataclass(frozen=True)
class Results:
    date: str
    machine: dict[str, Any]
    measurements: list[Measurement]

    def groups(self) -> list[list[Measurement]]:
        """Measurements that differ by implementation alone, in the order of the run."""
        groups: dict[tuple[str, str, str, int], list[Measurement]] = {}
        for measurement in self.measurements:
            groups.setdefault(measurement.group, []).append(measurement)
        return list(groups.values())

    @property
    def name(self) -> str:
        """Stem of its files: date and processor."""
        return self.date + "-" + re.sub(r"[^a-z0-9]+", "-", self.machine["processor"].lower()).strip("-")


def speed(measurement: Measurement, others: list[Measurement], implementation: str) -> float | None:
    """How many times as fast the measurement is as that implementation in its group, pair for pair."""
    other = next((other for other in others if other.implementation == implementation), None)
    if other is None or other.flop is None or measurement.flop is None:
        return None
    return (measurement.flop / measurement.seconds) / (other.flop / other.seconds)


def read_results(path: Path) -> Results:
    """Reads pytest-benchmark's JSON, or results that `write_results` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds neither, or no benchmark; names the file.
    """
    contents = parse_json_object(path.read_bytes(), path)
    try:
        if "measurements" in contents:
            measurements = [Measurement(**entry) for entry in contents["measurements"]]
            results = Results(contents["date"], contents["machine"], measurements)
        else:
            machine = {name: contents["machine_info"][name] for name in MACHINE}
            # Clustering is timed beside the scores but not of their kind: pytest-benchmark's own table shows it.
            scored = [entry for entry in contents["benchmarks"] if "operation" in entry["extra_info"]]
            measurements = [_measurement(entry) for entry in scored]
            results = Results(contents["datetime"][:10], machine, measurements)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the results of a benchmark run ({error!r})") from error
    if not results.measurements:
        raise ValueError(f"{path}: no benchmark was run")
    return results


def _measurement(benchmark: dict[str, Any]) -> Measurement:
    """Takes what is listed here and nothing else: neither single rounds nor whatever else extra_info has."""
    noted, stats = benchmark["extra_info"], benchmark["stats"]
    return Measurement(
        **{name: noted[name] for name in Measurement.__annotations__ if name in noted},
        seconds=stats["median"],
        rounds=stats["rounds"],
    )


def write_results(results: Results, path: Path) -> None:
    """Writes results as JSON, a measurement a line, figures to six digits."""
    entries = []
    for measurement in results.measurements:
        known = {name: value for name, value in asdict(measurement).items() if value is not None}
        rounded = {name: float(f"{x:.6g}") if isinstance(x, float) else x for name, x in known.items()}
        entries.append("    " + json.dumps(rounded, ensure_ascii=False))
    head = json.dumps({"date": results.date, "machine": results.machine}, indent=2, ensure_ascii=False)
    text = head.removesuffix("\n}") + ',\n  "measurements": [\n' + ",\n".join(entries) + "\n  ]\n}\n"
    with atomic_write(path) as file:
        file.write(text.encode())
