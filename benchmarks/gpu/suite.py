"""What the GPU suite said: `make gpu-test` leaves it in a file, whose name for the suite is the sources' hashes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.gpu.sources import ROOT, described

KEPT = ROOT / ".benchmarks/gpu-test.xml"  # as JUnit has it


def suite_of(sources: dict[str, str], path: Path = KEPT) -> dict[str, int] | None:
    """How many of its tests passed, failed and were skipped; None where it has not run on these sources."""
    suite = ET.parse(path).getroot().find("testsuite") if path.is_file() else None
    if suite is None or suite.get("name") != described(sources):
        return None
    count, failures, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    failed = failures + errors
    return {"passed": count - failed - skipped, "failed": failed, "skipped": skipped}
