"""A plugin of pytest for a suite that may be cut: failures are told as they come, and no test's cases are all last."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from benchmarks.gpu.lines import tell

LONGEST = 1500  # characters at the end of a message


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first case of every test, then the second of each, and so on."""
    seen = Counter[str]()
    rounds: dict[pytest.Item, int] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        rounds[item] = seen[test]
        seen[test] += 1
    items.sort(key=rounds.__getitem__)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:  # whose reports come to the one who started it, too
        tell("suite", f"FAILED {report.nodeid} ({report.when}): {str(report.longrepr)[-LONGEST:]}")
