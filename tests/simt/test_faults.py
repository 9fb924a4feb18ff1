"""Mistakes planted in kernels: each is reported, in every schedule, and the same kernel without it runs."""

from __future__ import annotations

import re

import pytest
import torch

from tests.simt.launches import SCHEDULES, Device, Mistake, Schedule

# What each is reported as.
FAULTS = {
    "race_between_warps": r"race: .*(read after write|write after read) of numbers",
    "race_past_a_warps_barrier": r"race: .*(read after write|write after read) of numbers",
    "race_in_a_warp": r"race: .*(read after write|write after read) of numbers",
    "write_before_all_have_read": r"race: .*(write after read|read after write) of numbers",
    "two_writers": r"race: .*write after write of numbers",
    "barrier_without_a_warp": r"missed barrier: .*waits at line \d+, which thread \d+ never reached",
    "barrier_without_odd_threads": r"missed barrier: .*waits at line \d+, which thread \d+ never reached",
    "barriers_of_two_numbers": r"missed barrier: .*waits at line \d+, which thread \d+ waits for at line \d+",
    "barriers_of_two_branches": r"divergent barrier: ",
    "shuffle_by_half_a_warp": r"missed warp operation: .*never reached",
    "shuffle_beside_a_vote": r"divergent warp: .*(shuffle|vote)",
    "read_of_nothing": r"uninitialised shared read: .*thread 58: numbers\[5\]",
    "read_of_another_blocks": r"uninitialised shared read: .*numbers",
    "write_beyond_shared_memory": r"out-of-bounds shared write: .*thread 63: numbers\[64\] of 64",
    "read_before_shared_memory": r"out-of-bounds shared read: .*thread 63: numbers\[-1\] of 64",
    "write_beyond_the_output": r"out-of-bounds global write: .*thread 0: out, byte 512 of 512",
    "read_before_the_input": r"out-of-bounds global read: .*thread 63: in, byte -4 of 512",
    "read_of_the_output": r"uninitialised global read: .*thread 7: out",
    "write_to_the_input": r"write to input: .*in, byte ",
    "four_at_an_odd_place": r"(misaligned|out-of-bounds) global read: .*in, byte ",
    "blocks_that_meet": r"race: .*of out, byte 12 beside another block's write",
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
NUMBERS = torch.arange(128, dtype=torch.float32)


def test_every_fault_is_tried(device: Device) -> None:
    assert device.fault_names() == list(FAULTS)


@every_schedule
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_reported(device: Device, name: str, schedule: Schedule) -> None:
    with pytest.raises(Mistake, match=FAULTS[name]) as found:
        device.run_fault(name, True, schedule, NUMBERS)
    assert re.search(rf": kernel {name}, block \([01], 0\), thread \d+: ", str(found.value))
    # The next launch is none the worse.
    assert torch.equal(device.run_fault(name, False, schedule, NUMBERS), NUMBERS.view(2, 64).flip(1).flatten())
