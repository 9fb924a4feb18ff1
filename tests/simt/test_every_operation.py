"""The program that compute-sanitizer runs, tests/gpu/every_operation.py, here on the CPU: it leaves nothing out."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.every_operation import left_out
from tests.simt.launches import Device

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_operation_is_called(simulated: Device) -> None:
    simulated.choose(multiprocessors=3, capability=90)
    assert left_out(torch.device("cpu")) == []
