"""Random accesses are reported exactly where two of them race, in every schedule alike."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kernels.strategies import examples
from tests.simt.launches import SCHEDULES, Device, Mistake

WARPS, PHASES, STEPS, SHARED_BYTES = 3, 2, 4, 32
READ, WRITE, COPY = 1, 2, 3  # of programs.cuh
# Threads, few of them, some of one warp, and steps.
PLACES = st.tuples(st.sampled_from((0, 1, 31, 32, 33, 95)), st.integers(0, PHASES * STEPS - 1))


class Access(NamedTuple):
    """What a thread does in a step. Its warp meets behind every second step, the block behind each phase."""

    thread: int
    step: int  # from the first phase's first on
    kind: int
    begin: int
    bytes: int


@st.composite
def accesses(draw: st.DrawFn) -> Access:
    thread, step = draw(PLACES)
    kind = draw(st.sampled_from((READ, WRITE, READ, WRITE, COPY)))
    size = 16 if kind == COPY else draw(st.sampled_from((2, 4, 2, 4, 8, 16)))
    begin = draw(st.integers(0, SHARED_BYTES // size - 1)) * size
    return Access(thread, step, kind, begin, size)


def end(access: Access, waits: set[tuple[int, int]]) -> tuple[int, bool]:
    """The step in which an access is done, and whether only behind what its thread does there."""
    if access.kind != COPY:
        return access.step, False
    steps = range(access.step, PHASES * STEPS)
    return next((step for step in steps if (access.thread, step) in waits), PHASES * STEPS - 1), True


def ordered(first: Access, second: Access, waits: set[tuple[int, int]]) -> bool:
    done, waited = end(first, waits)
    if first.thread == second.thread:
        return done < second.step or (done == second.step and not waited)
    if first.thread // 32 == second.thread // 32 and done // 2 < second.step // 2:
        return True
    return done // STEPS < second.step // STEPS


def race(first: Access, second: Access, waits: set[tuple[int, int]]) -> bool:
    apart = first.begin + first.bytes <= second.begin or second.begin + second.bytes <= first.begin
    if apart or first.kind == second.kind == READ:
        return False
    return not ordered(first, second, waits) and not ordered(second, first, waits)


# Readers of a warp, of whom one writes before they meet, and when they have met; a copy, which its thread reads first.
READERS = [Access(0, 0, READ, 0, 16), Access(1, 0, READ, 0, 8)]
WORD_READERS = [Access(0, 0, READ, 4, 4), Access(1, 0, READ, 4, 4)]
COPIES = [Access(32, 0, COPY, 16, 16), Access(32, 2, READ, 24, 8), Access(95, 4, READ, 16, 2)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@examples(250)
@given(program=st.lists(accesses(), min_size=2, max_size=8), waits=st.sets(PLACES))
@example(program=[*READERS, Access(1, 1, WRITE, 4, 4)], waits=set())
@example(program=[*READERS, Access(1, 1, WRITE, 0, 16)], waits=set())
@example(program=[*READERS, Access(1, 2, WRITE, 4, 4)], waits=set())
@example(program=[*WORD_READERS, Access(1, 1, WRITE, 4, 4)], waits=set())
@example(program=COPIES, waits={(32, 1)})
@example(program=COPIES, waits={(32, 2)})
def test_races_are_what_is_reported(
    device: Device, schedule: Any, program: list[Access], waits: set[tuple[int, int]]
) -> None:
    steps = torch.zeros(WARPS * 32, PHASES * STEPS, 4, dtype=torch.int32)
    by_place = {(access.thread, access.step): access for access in program}
    for place, access in by_place.items():
        steps[place][:3] = torch.tensor([access.kind, access.begin, access.bytes])
    for place in waits:
        steps[place][3] = 1
    races = any(race(*pair, waits) for pair in combinations(by_place.values(), 2))
    try:
        device.run_program(schedule, steps.view(WARPS * 32, PHASES, STEPS, 4), SHARED_BYTES)
    except Mistake as mistake:
        assert races, mistake
        assert "race: " in str(mistake) or "unfinished copy: " in str(mistake)
    else:
        assert not races
