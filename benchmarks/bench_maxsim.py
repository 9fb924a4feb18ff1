"""Sum-Max as late interaction: a query of 32 tokens against documents of 128–300 tokens, beside the peers."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.cases import LATE_INTERACTION, TINY, Case
from benchmarks.checks import TOLERANCES, check_scores
from benchmarks.implementations import EINSUMS, FASTEST, FUSED, IMPLEMENTATIONS, PRODUCT, maxsim
from benchmarks.loops import maxsim_loop
from benchmarks.measure import Bench
from benchmarks.peer_scores import PEERS

# Warnings of torch's compiler are left out.
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")


def score(bench: Bench, operation: str, case: Case, dtype: torch.dtype, name: str) -> None:
    case = bench.size(case)
    inputs = case.inputs().to(dtype)
    if name in PEERS:
        ours = maxsim(FASTEST, inputs, bench)()
        torch.testing.assert_close(maxsim(name, inputs, bench)(), ours, rtol=0, atol=TOLERANCES[dtype])
    call = maxsim(name, inputs, bench)
    check = None if name == PRODUCT else partial(check_scores, inputs=inputs, oracle=maxsim_loop)
    bench.describe(operation, case, dtype, name)
    bench.measure(inputs, call, check)


@pytest.mark.parametrize("name", [*IMPLEMENTATIONS, *PEERS])
def test_late_interaction(bench: Bench, name: str) -> None:
    score(bench, "Sum-Max", LATE_INTERACTION, torch.float32, name)


@pytest.mark.parametrize(
    "name",
    [PRODUCT, *(pytest.param(name, marks=pytest.mark.full) for name in ["loop", *EINSUMS, "torch", *PEERS]), *FUSED],
)
def test_late_interaction_in_bfloat16(bench: Bench, name: str) -> None:
    score(bench, "Sum-Max", LATE_INTERACTION, torch.bfloat16, name)


# maxsim-cpu chooses its threads once a process and has no line here.
@pytest.mark.parametrize("name", [PRODUCT, FASTEST])
@pytest.mark.parametrize("threads", [1])
def test_late_interaction_on_one_thread(bench: Bench, name: str) -> None:
    score(bench, "Sum-Max", LATE_INTERACTION, torch.float32, name)


@pytest.mark.parametrize("name", [PRODUCT, "loop", FASTEST])
def test_a_call_of_almost_nothing(bench: Bench, name: str) -> None:
    score(bench, "Sum-Max, overhead of a call", TINY, torch.float32, name)
