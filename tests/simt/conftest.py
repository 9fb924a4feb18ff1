"""The device that runs kernels on the CPU."""

from __future__ import annotations

import os

import pytest

from tests.simt.launches import Device, build


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    own = tmp_path_factory.getbasetemp()
    # Folders of pytest-xdist's workers lie in that of the run.
    return Device(build(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own))
