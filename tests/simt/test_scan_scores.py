"""`scan_scores` by backend "cuda" on the CPU, held to the checks of tests/kernels/scan_checks."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import pytest

from crossret_kernels.cross_attention.cuda import plan
from crossret_kernels.cross_attention.options import CrossAttentionOptions
from tests.kernels.scan_checks.agreement import Agreement
from tests.kernels.scan_checks.calls import Calls
from tests.kernels.scan_checks.gradients import Gradients
from tests.kernels.scan_checks.kernels import Kernels
from tests.kernels.scan_checks.not_finite import NotFinite
from tests.simt.launches import SCHEDULES, Device


@pytest.fixture(scope="module")
def kernels(simulated: Device) -> Iterator[Kernels]:
    """A call comes in several parts, or not; every call that is checked has a schedule, by chance."""

    def vary(what: str) -> None:
        number = crc32(what.encode())
        simulated.choose(SCHEDULES[number % 4], (1, 2, 100)[number // 4 % 3])

    cuda = Kernels(
        "cuda",
        modules=(plan,),
        least={"CELLS": 1, "ROW_BYTES": 1},
        apart={"CELLS": 1, "GRAM_BYTES": 1},
        runs={"ROW_BYTES": 1000},
        codes=lambda *options: (None, *CrossAttentionOptions(*options).codes),
        before=vary,
    )
    with cuda.sizes(CELLS=1500, ROW_BYTES=20_000, GRAM_BYTES=40_000):
        yield cuda


@pytest.fixture(autouse=True)
def schedule(kernels: Kernels, request: pytest.FixtureRequest) -> None:
    kernels.before(request.node.name)


class TestAgreement(Agreement): ...


class TestNotFinite(NotFinite): ...


class TestGradients(Gradients): ...


class TestCalls(Calls): ...
