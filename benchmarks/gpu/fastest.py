"""Writes the table by which `backend=None` chooses, crossret_kernels/fastest.json, of the records of all cards:
python -m benchmarks.gpu.fastest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from benchmarks.gpu.report import recorded
from benchmarks.gpu.results import GpuResults, Measurement
from benchmarks.gpu.sources import ROOT
from crossret.files.atomic import atomic_write
from crossret_kernels.fastest import KERNELS, LARGE, TABLE, Asked

# Direction by the name of a case: whether gradients follow.
OPERATIONS = {
    f"{name} {what}": (direction, what != "forward")
    for name, direction in (("t2i LSE", "t2i"), ("i2t AVG", "i2t"))
    for what in ("forward", "training step")
}


def rows_of(records: Iterable[GpuResults]) -> Iterator[list[object]]:
    """A row for every case that both backends were measured in."""
    for results in records:
        for group in results.groups():
            seconds = {m.implementation: m.seconds for m in group}
            if (call := asked_in(group[0])) and set(KERNELS) <= seconds.keys():
                device = results.device
                times = float(f"{seconds['triton'] / seconds['cuda']:.3g}")
                yield [device["name"], device["capability"], results.date, *call, times]


def asked_in(measurement: Measurement) -> Asked | None:
    """Key of a call of this case; None where `backend=None` does not choose, as "cuda" does not serve float32."""
    if measurement.operation not in OPERATIONS or measurement.precision == "float32":
        return None
    direction, gradients = OPERATIONS[measurement.operation]
    return Asked(direction, measurement.precision, gradients, measurement.work >= LARGE)


def text_of(records: Iterable[GpuResults]) -> str:
    """The table, a row a line."""
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows_of(records)) + "\n]\n"


def main() -> None:
    with atomic_write(TABLE) as file:
        file.write(text_of(recorded(ROOT)).encode())
    print(f"wrote {TABLE.name}")


if __name__ == "__main__":
    main()
