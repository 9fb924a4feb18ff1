"""Calls of `maxsim_scores` by backend "cuda": layouts, candidates, empty batches, top-k, opcheck."""

from __future__ import annotations

import pytest

from tests.kernels.maxsim_checks import (
    check_candidates,
    check_layouts,
    check_nothing,
    check_operations,
    check_topk,
    directions,
    layouts,
)
from tests.simt.launches import Device

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def defaults(device: Device) -> None:
    device.choose()


@directions
@layouts
def test_layouts(direction: str, layout: str) -> None:
    check_layouts("cuda", direction, layout)


@directions
def test_candidates(direction: str) -> None:
    check_candidates("cuda", direction)


@directions
def test_nothing(direction: str) -> None:
    check_nothing("cuda", direction)


@directions
@pytest.mark.parametrize("query", ["caption", "image"])
def test_topk(direction: str, query: str) -> None:
    check_topk("cuda", direction, query)


@pytest.mark.parametrize(("direction", "pairs"), [("t2i", False), ("i2t", True)], ids=["all", "pairs"])
def test_operations(direction: str, pairs: bool) -> None:
    check_operations("cuda", direction, pairs)
