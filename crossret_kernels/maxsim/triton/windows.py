"""Parts of a call of Sum-Max in Triton whose best contexts lie in a bounded workspace, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from crossret_kernels.maxsim.triton.call import KernelSide, MaxSimCall, MaxSimPlan
from crossret_kernels.maxsim.triton.forward import find
from crossret_kernels.maxsim.triton.found import Found, Strides
from crossret_kernels.maxsim.triton.pooling import pool


class Window(NamedTuple):
    """Some items of contexts with all queries, or some listed pairs, and what was found of them.

    Attributes:
        first, size: the items of contexts, or places among the pairs.
        pairs: those that are listed.
    """

    plan: MaxSimPlan
    operands: tuple[KernelSide, KernelSide]
    found: Found
    first: int
    size: int
    pairs: Tensor | None


def windows(
    call: MaxSimCall, *, index: bool, scores: Tensor | None = None, score_strides: tuple[int, int] = (0, 0)
) -> Iterator[Window]:
    """Windows in which the best contexts were found, their places with `index`; what was found of one is gone with the
    next. Of scores that are made of maxima in memory they are stored, or with `index` the maxima's weights.
    """
    plan, operands = call.plan(index=index, gradients=True), call.operands()
    total = call.pairs.size(0) if call.pairs is not None else call.n_contexts
    shape, unused = (plan.window, plan.pitch), plan.tables.groups

    def room(wanted: bool, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=call.device) if wanted else unused

    found = Found(
        unused if scores is None else scores, room(index, torch.float32 if call.soft else torch.int32),
        room(plan.kind.VALUES, torch.float32), room(index and call.apart, torch.float32),
    )  # fmt: skip
    strides = Strides(*score_strides, plan.pitch, plan.found_slots)
    for first in range(0, total, plan.window):
        count = min(plan.window, total - first)
        pairs = None if call.pairs is None else call.pairs[first : first + count]
        if index and call.pooling == "max":
            found.indices.fill_(-1)  # all but the best query's stay so
        find(call, plan, operands, found, strides, first if pairs is None else 0, pairs)
        if call.apart:
            pool(call, plan, operands[1], found, strides, first, count, pairs, gradients=index)
        yield Window(plan, operands, found, first, count, pairs)
