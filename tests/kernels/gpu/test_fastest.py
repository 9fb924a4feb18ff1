"""`backend=None` takes what a record says is fastest: of the nearest card, in the case most like the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from crossret_kernels import fastest
from crossret_kernels.fastest import Asked, Case, asked, order
from crossret_kernels.inputs.call import as_call
from crossret_kernels.two_sides import fastest_of
from tests.kernels.precision import tfloat32

H100, A100 = ("H100", (9, 0), "2026-01-01"), ("A100", (8, 0), "2026-01-01")
CUDA_FIRST, TRITON_FIRST = ("cuda", "triton"), ("triton", "cuda")
CASES = (
    Case(*H100, Asked("t2i", "bfloat16", False, True), 2.0),
    Case(*H100, Asked("t2i", "bfloat16", False, False), 0.5),
    Case(*H100, Asked("i2t", "bfloat16", True, True), 0.25),
    Case(*H100, Asked("t2i", "float16", False, True), 0.25),
    Case(*A100, Asked("t2i", "float16", False, True), 3.0),
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CASES are all that was measured."""
    monkeypatch.setattr(fastest, "cases", lambda: CASES)
    order.cache_clear()
    yield
    order.cache_clear()


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("call", "capability", "expected"),
    [
        (("t2i", "bfloat16", False, True), (9, 0), CUDA_FIRST),
        (("t2i", "bfloat16", False, False), (9, 0), TRITON_FIRST),
        (("i2t", "bfloat16", True, True), (9, 0), TRITON_FIRST),
        # What no case is: of the same precision, then size, then gradients, then direction.
        (("i2t", "bfloat16", False, True), (9, 0), CUDA_FIRST),
        (("i2t", "bfloat16", True, False), (9, 0), TRITON_FIRST),
        # Precisions without a case: both cases of that size count alike, 2 × 0.25.
        (("t2i", "tf32", False, True), (9, 0), TRITON_FIRST),
        # The nearest generation with a record.
        (("t2i", "float16", False, True), (9, 0), TRITON_FIRST),
        (("t2i", "float16", False, True), (8, 6), CUDA_FIRST),
        (("t2i", "float16", False, True), (12, 0), TRITON_FIRST),
    ],
)
def test_the_case_most_like_a_call_decides(
    call: tuple[Any, ...], capability: tuple[int, int], expected: tuple[str, str]
) -> None:
    assert order(Asked(*call), *capability) == expected


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("layout", ["padded", "packed", "pairs", "candidates"])
def test_the_work_of_a_call_is_that_of_its_products(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 × 5 by 4 × 3 rows of 16; half of the pairs."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    regions, words = torch.zeros(6, 5, 16, dtype=torch.bfloat16), torch.zeros(4, 3, 16, dtype=torch.bfloat16)
    given: tuple[Any, Any] = regions, words
    if layout == "packed":
        given = (regions.flatten(0, 1), torch.arange(0, 31, 5)), (words.flatten(0, 1), torch.arange(0, 13, 3))
    pairs = torch.zeros(12, 2, dtype=torch.int64) if layout == "pairs" else None
    candidates = torch.zeros(4, 3, dtype=torch.int64) if layout == "candidates" else None
    call = as_call((*given, None, None, None, None, None), pairs, candidates, None)
    work = 2 * 30 * 12 * 16 // (1 if call.pairs is None else 2)
    for least, expected in ((work, CUDA_FIRST), (work + 1, TRITON_FIRST)):
        monkeypatch.setattr(fastest, "LARGE", least)
        assert fastest_of(call, "t2i") == expected


def test_float32_features_are_asked_for_by_what_multiplies_them() -> None:
    for allowed, expected in ((True, "tf32"), (False, "float32")):
        with tfloat32(allowed):
            assert asked("t2i", torch.float32, 0, False).precision == expected
            assert asked("t2i", torch.float16, 0, False).precision == "float16"
