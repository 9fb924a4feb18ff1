"""Numbers cross the border to the CUDA library by name, and it says its own constants."""

from __future__ import annotations

import pytest

from crossret_kernels.gpu.cuda_library import constant, constants, numbers

pytestmark = pytest.mark.usefixtures("device")
SIDE = {"own_slots": 1, "own_most": 2, "own_rows": 3, "own_item_stride": 4, "own_row_stride": 5, "own_items": 6}


def test_numbers_travel_in_the_order_of_their_names() -> None:
    assert numbers("maxsim_norms", **dict(reversed(SIDE.items()))).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("wrong", [{"own_items": None}, {"own_width": 6}], ids=["missing", "unknown"])
def test_numbers_that_are_not_those_of_a_launch(wrong: dict[str, int | None]) -> None:
    given = {name: value for name, value in (SIDE | wrong).items() if value is not None}
    with pytest.raises(ValueError, match=r"maxsim_norms takes own_slots, own_most, .*, not own_slots"):
        numbers("maxsim_norms", **given)


def test_constants() -> None:
    assert constant("maxsim_stage_bytes") == 64
    assert constants("attention_fragment_rows") == (8, 16, 16, 8)
