"""Mistakes planted in kernels: each is reported, in every schedule, and the same kernel without it runs."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

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
    "copy_without_a_wait": r"(unfinished copy: .*read|race: .*write after read) of dynamic shared memory, byte \d+, ",
    "copy_without_a_barrier": r"(race: .*(read after write|write after read)|unfinished copy: .*read) of dynamic",
    "wait_for_all_but_one": r"unfinished copy: .*read of dynamic shared memory, byte \d+, which thread \d+ has not",
    "wait_before_the_commit": r"unfinished copy: .*read of dynamic shared memory, byte \d+, which thread \d+ has not",
    "copy_that_nobody_waits_for": r"unfinished copy: .*thread \d+: 1 that the thread has not waited for",
    "ring_too_short": r"(race: .*write after read|unfinished copy: .*read) of dynamic shared memory, byte",
    "write_under_a_copy": r"(unfinished copy: .*write|race: .*write after write) of dynamic shared memory, byte",
    "two_copies_to_one_place": r"unfinished copy: .*thread (\d+): copy of .*, which thread \1 has not waited for",
    "copy_beyond_the_input": r"out-of-bounds global read: .*thread 15: in, byte 512 of 512",
    "misaligned_chunk": r"misaligned shared copy: .*byte \d+, 16 bytes",
    "misaligned_source": r"misaligned global read: .*in, byte 8, 16 bytes",
    "write_beyond_dynamic_memory": r"out-of-bounds shared write: .*thread 63: dynamic shared memory, byte 1024 of 1024",
    "memory_of_two_types": r"race: .*(write after read|read after write) of dynamic shared memory, byte",
    "matrix_before_its_rows": r"race: .*(read after write|write after read) of dynamic shared memory, byte",
    "product_of_half_a_warp": r"missed warp operation: .*never reached",
    "vote_beside_a_barrier": r"divergent barrier: ",
}
# Reports of kernels that multiply in warpgroups; those without a report show as numbers that are none.
PRODUCT_FAULTS = {
    "refill_under_a_product": r"race: .*write after read of dynamic .*, by a product that has not been waited for",
    "refill_when_one_warp_is_done": r"race: .*write after read of dynamic .*, by a product that has not been waited",
    "write_under_a_product": r"race: .*write after read of dynamic .*, by a product that has not been waited for",
    "wait_for_the_wrong_parity": r"(uninitialised shared read by a product|unfinished copy|missed arrival): ",
    "fewer_bytes_expected": r"(unexpected bytes: .*, which expects 8192|unfinished copy: |uninitialised shared read)",
    "more_bytes_expected": r"missed arrival: .*waits at line \d+ for phase 0 of .* 128 of 10368 bytes are missing",
    "product_without_a_fence": r"missing fence: .*a product without fence_products",
    "sums_written_behind_the_fence": r"missing fence: .*a product whose sums were written behind fence_products",
    "sums_read_early": None,
    "sums_written_early": r"unfinished product: .*whose sums were written before it was waited for",
    "product_that_nobody_waits_for": r"unfinished product: .*whose sums the thread has not waited for",
    "missed_arrival": r"missed arrival: .*thread 128 .*waits at line \d+ for phase 0 of .*: [12] of [48] arrivals and",
    "product_of_a_stage_on_its_way": r"(uninitialised shared read by a product|unfinished copy): ",
    "wait_by_one_lane": r"unfinished copy: .*product of dynamic .*, for whose bytes the thread has not waited",
    "arrivals_without_a_fence": r"missing fence: .*the barrier in dynamic .* initialised without fence_arrivals",
    "arrivals_without_a_barrier": r"(race: .*read after write|uninitialised shared read: .*) ",
    "misaligned_box": r"misaligned shared copy: .*byte 128, 8192 bytes",
    "box_beyond_shared_memory": r"out-of-bounds shared copy: .* of 20512",
    "product_without_a_thread": r"missed warpgroup operation: .*waits at line \d+, which thread 5 .*(reached|waits)",
    "box_that_nobody_waits_for": r"unfinished copy: .*for whose bytes at the barrier in .* nobody has waited",
    "product_of_nothing": r"uninitialised shared read by a product: ",
    "written_rows_without_a_fence": r"missing fence: .*product of .*, behind which thread \d+ .*has no fence_copies",
    "fence_behind_the_barrier": r"missing fence: .*product of .*, behind which thread \d+ .*has no fence_copies",
    "release_before_the_warp_meets": r"race: .*write after read of dynamic .*, no barrier after thread \d+",
    "read_behind_every_lanes_release": r"(race: .*(write after|read after)|unfinished copy: .*read of)",
    "read_behind_the_release": r"(race: .*(write after|read after)|unfinished copy: .*read of)",
    "arrivals_at_a_block_that_ended": r"early end: .*of block [01] of the cluster, .* of block [01] has arrived at ",
    "copies_to_a_block_that_ended": r"unfinished copy: .*for whose bytes at the barrier in .* nobody has waited",
    "refill_under_anothers_product": r"(race: .*, by a product|unfinished copy: .*: copy of |unexpected bytes: )",
    "cluster_that_does_not_meet": r"(race: .*read after write|uninitialised shared read: .*) ",
}
FAULTS_OF_CLUSTERS = list(PRODUCT_FAULTS)[-4:]
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


def test_every_fault_of_products_is_tried(device: Device) -> None:
    assert device.fault_names("product_fault_name") == list(PRODUCT_FAULTS)


@every_schedule
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("name", PRODUCT_FAULTS)
def test_faults_of_products_are_reported(device: Device, name: str, cluster: int, schedule: Schedule) -> None:
    number, generator = list(PRODUCT_FAULTS).index(name), torch.Generator().manual_seed(6)
    left, right = (torch.randint(-9, 10, (rows, 96), generator=generator).float() for rows in (128 * cluster, 16))

    def run(planted: bool) -> Tensor:
        out = torch.empty(len(left), 16)
        device.run_scheduled("run_product_fault", schedule, number, planted, cluster, left, right, out, len(left) // 64)
        return out

    if cluster == 2 or name not in FAULTS_OF_CLUSTERS:
        if (report := PRODUCT_FAULTS[name]) is None:
            assert run(True).isnan().any()
        else:
            with pytest.raises(Mistake, match=report) as found:
                run(True)
            assert re.search(rf": kernel {name}, block \([0-3], 0\), thread \d+: ", str(found.value))
    assert torch.equal(run(False), left @ right.T)
