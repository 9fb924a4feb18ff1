"""Precision of products in the GPU tests where a test does not choose it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.device import precision


@pytest.fixture(autouse=True)
def usual_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """TF32 of float32 features where "cuda" multiplies: it has no other."""
    called = getattr(request.node, "callspec", None)
    by_cuda = called is not None and called.params.get("backend") == "cuda"
    with precision("tf32" if by_cuda else "float32"):
        yield
