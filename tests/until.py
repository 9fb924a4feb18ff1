"""A plugin of pytest: from a time on tests are skipped, so that those that ran are known; ``-p tests.until``."""

from __future__ import annotations

import os
import time

import pytest

ENDS_AT = "CROSSRET_TESTS_END_AT"  # of `time.time`


def pytest_runtest_setup() -> None:
    if time.time() > float(os.environ.get(ENDS_AT, "inf")):
        pytest.skip("time is over")
