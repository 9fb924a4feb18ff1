"""Figures of a run on a GPU: what is kept of it, and whether the kernels are still those that it measured."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossret.files.atomic import atomic_write
from crossret.files.json import parse_json_object

FUSED = ("triton", "cuda")  # measured implementations; all else stands beside them


@dataclass(frozen=True)
class Measurement:
    """One implementation of one case; `pairs` says how many of the case's it scored, as a sample may stand for all."""

    operation: str
    case: str
    precision: str
    implementation: str
    pairs: int
    work: int  # measure by which these pairs are compared: flop of the similarity product, or bytes
    seconds: float  # median of a call
    rounds: int
    floor: str  # name of the bound that takes `floor_seconds`
    floor_seconds: float  # in the same run
    error: float | None = None  # the largest beside float64, of a sample
    peak_mebibytes: float | None = None  # beyond inputs and results
    target: float | None = None  # wanted ratio to the floor
    replayed_seconds: float | None = None  # a replay of its CUDA graph, for calls that may wait for the host
    slower: dict[str, float] | None = None  # how many times as slow as these it is wanted to be

    @property
    def group(self) -> tuple[str, str, str]:
        return self.operation, self.case, self.precision

    @property
    def floor_ratio(self) -> float:
        return self.seconds / self.floor_seconds


@dataclass(frozen=True)
class GpuResults:
    """
    Attributes:
        date: of the run.
        device: its name, capability and memory.
        versions: of Python, torch, CUDA and Triton.
        sources: hashes of the kernels' sources by backend (`sources.source_hashes`).
        suite: how many tests of the GPU suite passed, failed and were skipped on these sources; None where it has not
            run.
        missing: why an implementation was left out, or gave no figures of a case, by its name.
        measurements: in the order of the run.
    """

    date: str
    device: dict[str, Any]
    versions: dict[str, str]
    sources: dict[str, str]
    suite: dict[str, int] | None
    missing: dict[str, str]
    measurements: list[Measurement]

    @property
    def name(self) -> str:
        """Stem of the file: the device."""
        return re.sub(r"[^a-z0-9]+", "-", self.device["name"].lower()).strip("-")

    def stale(self, sources: dict[str, str]) -> list[str]:
        """Backends whose kernels have changed since."""
        return [backend for backend, own in sources.items() if self.sources.get(backend) != own]

    def groups(self) -> list[list[Measurement]]:
        """Measurements that differ by implementation alone."""
        groups: dict[tuple[str, str, str], list[Measurement]] = {}
        for measurement in self.measurements:
            groups.setdefault(measurement.group, []).append(measurement)
        return list(groups.values())


def read_gpu_results(path: Path) -> GpuResults:
    """Reads what `write_gpu_results` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else; names the file.
    """
    contents = parse_json_object(path.read_bytes(), path)
    try:
        measurements = [Measurement(**entry) for entry in contents.pop("measurements")]
        return GpuResults(measurements=measurements, **contents)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the results of a run on a GPU ({error!r})") from error


def write_gpu_results(results: GpuResults, path: Path) -> None:
    """Writes results as JSON, a measurement a line, figures to six digits."""
    head = {name: value for name, value in asdict(results).items() if name != "measurements"}
    entries = []
    for measurement in results.measurements:
        known = {name: value for name, value in asdict(measurement).items() if value is not None}
        rounded = {name: float(f"{x:.6g}") if isinstance(x, float) else x for name, x in known.items()}
        entries.append("    " + json.dumps(rounded, ensure_ascii=False))
    text = json.dumps(head, indent=2, ensure_ascii=False).removesuffix("\n}")
    text += ',\n  "measurements": [\n' + ",\n".join(entries) + "\n  ]\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())
