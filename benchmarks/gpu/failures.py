"""A plugin of pytest that tells a failure with its message as it comes: a suite that is cut keeps them."""

from __future__ import annotations

import pytest

from benchmarks.gpu.lines import tell

LONGEST = 1500  # of a message's end


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        tell("suite", f"FAILED {report.nodeid} ({report.when}): {str(report.longrepr)[-LONGEST:]}")
