"""The device that runs kernels on the CPU, and backend "cuda" on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from crossret_kernels import backends
from tests.kernels.precision import tfloat32
from tests.simt.launches import Device
from tests.simt.library import build


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    own = tmp_path_factory.getbasetemp()
    # Folders of pytest-xdist's workers lie in that of the run.
    return Device(build(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own))


@pytest.fixture(scope="module")
def simulated(device: Device) -> Iterator[Device]:
    """For a module whose calls of backend "cuda" take tensors on the CPU, and float32 features in TF32."""
    with pytest.MonkeyPatch.context() as patch, tfloat32():
        patch.setattr(backends, "CUDA_MISSING", None)
        patch.setattr(backends, "SIMULATED", True)
        yield device
