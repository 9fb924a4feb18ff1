"""Implementations side by side: the loop, einsums, the backends of crossret_kernels by instruction set, torch.mm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Inputs
from benchmarks.loops import maxsim_loop, scan_loop
from benchmarks.measure import Bench
from benchmarks.peer_scores import PEERS
from crossret_kernels import maxsim_scores, scan_scores

# The emulated one is for tests.
ISAS: list[str] = [isa for isa in torch.ops.crossret.cpu_isas().split() if isa != "amx_emulated"]
FUSED = [f"cpu {isa}" for isa in ISAS]
FASTEST = FUSED[-1]
PRODUCT = "torch.mm"
EINSUMS = ["einsum", "einsum, compiled"]
IMPLEMENTATIONS = [PRODUCT, "loop", *EINSUMS, "torch", *FUSED]

# Pairs that one call takes on where all at once would need gigabytes or minutes: their rates hold for any number.
MOST_PAIRS = {"loop": 128 * 128, "einsum": 128 * 32, "einsum, compiled": 128 * 32, "torch": 512 * 512}


def sample(name: str, inputs: Inputs) -> Inputs:
    """The captions, all or the first, that the named implementation scores in a call."""
    most = MOST_PAIRS.get(name, inputs.pairs) // len(inputs.regions)
    return inputs.first(len(inputs.regions), max(1, most))


def select(name: str, bench: Bench) -> str:
    """The backend of the named implementation; sets the instruction set of the native one."""
    if name in FUSED:
        torch.ops.crossret.select_cpu_isa(name.removeprefix("cpu "))
        return "cpu"
    return "reference" if name in EINSUMS else name


def product(inputs: Inputs) -> Callable[[], Tensor]:
    """The bare similarity product: not a score, but what every score contains."""
    regions, words = inputs.packed_regions()[0], inputs.packed_words()[0]
    return lambda: torch.mm(regions, words.T)


def scan(name: str, inputs: Inputs, options: dict[str, Any], bench: Bench) -> Callable[[], Tensor]:
    """A call of the named implementation of `scan_scores`; images have all their regions, as the loop needs."""
    assert int(inputs.region_lengths.min()) == inputs.regions.size(1)
    if name == PRODUCT:
        return product(inputs)
    if name == "loop":
        return lambda: scan_loop(inputs, **options)
    backend = select(name, bench)
    return _compiled(
        name,
        bench,
        partial(
            scan_scores, inputs.regions, inputs.words, word_lengths=inputs.word_lengths, backend=backend, **options
        ),
    )


def maxsim(name: str, inputs: Inputs, bench: Bench) -> Callable[[], Tensor]:
    """A call of the named implementation of `maxsim_scores`, or of a peer."""
    if name == PRODUCT:
        return product(inputs)
    if name == "loop":
        return lambda: maxsim_loop(inputs)
    if name in PEERS:
        return PEERS[name](inputs)
    regions, backend = inputs.packed_regions(), select(name, bench)
    return _compiled(
        name, bench, partial(maxsim_scores, regions, inputs.words, word_lengths=inputs.word_lengths, backend=backend)
    )


def _compiled(name: str, bench: Bench, call: partial[Tensor]) -> Callable[[], Tensor]:
    """The call itself, or compiled where the name says so: by a first call, which is not to be measured."""
    if name != EINSUMS[1]:
        return call
    torch.compiler.reset()
    # A test captures it alone: generating and compiling code takes longer than all other tests.
    score = torch.compile(call.func, backend="inductor" if bench.timed else "eager")
    compiled = partial(score, *call.args, **call.keywords)
    compiled()
    return compiled
