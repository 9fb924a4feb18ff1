"""Sanitizers follow threads from stack to stack: what a kernel does to an array of its own is reported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simt.launches import Device
from tests.simt.library import SANITIZED

pytestmark = pytest.mark.skipif(not SANITIZED, reason="make sanitize runs this")


@pytest.mark.parametrize("order", [0, 1])
def test_write_beyond_an_array(device: Device, order: int) -> None:
    ran = {}
    for planted in (0, 1):
        code = f"import ctypes; ctypes.CDLL({device.path!r}).run_beyond_an_array({planted}, {order})"
        ran[planted] = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran[0].returncode, ran[0].stderr) == (0, "")
    assert ran[1].returncode != 0
    assert "write_beyond_an_array" in ran[1].stderr
    assert "stack-buffer-overflow" in ran[1].stderr or "out of bounds" in ran[1].stderr
