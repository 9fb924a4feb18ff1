"""Numbers cross the border to the CUDA library by name, and it says its own constants."""

from __future__ import annotations

import pytest

from crossret_kernels.cross_attention.cuda.library import constant, constants, numbers

pytestmark = pytest.mark.usefixtures("device")
PART = {"first": 1, "items": 2, "rows": 3, "longest": 4, "slots": 5, "full": 1}


def test_numbers_travel_in_the_order_of_their_names() -> None:
    assert numbers("attention_part", **dict(reversed(PART.items()))).tolist() == [1, 2, 3, 4, 5, 1]


@pytest.mark.parametrize("wrong", [{"items": None}, {"width": 6}], ids=["missing", "unknown"])
def test_numbers_that_are_not_those_of_a_launch(wrong: dict[str, int | None]) -> None:
    given = {name: value for name, value in (PART | wrong).items() if value is not None}
    with pytest.raises(ValueError, match=r"attention_part takes first, items, .*, not first"):
        numbers("attention_part", **given)


def test_constants() -> None:
    assert constant("attention_fragment_bytes") == 512
    assert constants("attention_fragment_rows") == (16, 16, 8)
