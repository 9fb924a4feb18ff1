"""Stacked cross attention of a training batch, forward alone and with the hardest-negative loss and its gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.cases import SETTINGS, TRAINING_BATCH
from benchmarks.checks import check_scores
from benchmarks.implementations import EINSUMS, FASTEST, FUSED, IMPLEMENTATIONS, PRODUCT, sample, scan
from benchmarks.loops import scan_loop
from benchmarks.measure import Bench, training_step

# Warnings of torch's compiler are left out.
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")

BOTH_WAYS = pytest.mark.parametrize("setting", SETTINGS)
FULL = pytest.mark.full
IN_BFLOAT16 = [PRODUCT, pytest.param("loop", marks=FULL), pytest.param("torch", marks=FULL), *FUSED]


def score(bench: Bench, setting: str, dtype: torch.dtype, name: str, centred: bool = False) -> None:
    case, options = bench.size(TRAINING_BATCH), SETTINGS[setting]
    inputs = sample(name, case.inputs().to(dtype))
    inputs = inputs.minus_item_means() if centred else inputs
    call = scan(name, inputs, options, bench)
    check = None if name == PRODUCT else partial(check_scores, inputs=inputs, oracle=partial(scan_loop, **options))
    operation = f"{setting} forward, features minus their item's mean" if centred else f"{setting} forward"
    bench.describe(operation, case, dtype, name)
    bench.measure(inputs, call, check)


@BOTH_WAYS
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_forward(bench: Bench, setting: str, name: str) -> None:
    score(bench, setting, torch.float32, name)


@BOTH_WAYS
@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_forward_in_bfloat16(bench: Bench, setting: str, name: str) -> None:
    score(bench, setting, torch.bfloat16, name)


@BOTH_WAYS
@pytest.mark.parametrize("name", [PRODUCT, FASTEST])
@pytest.mark.parametrize("threads", [1])
def test_forward_on_one_thread(bench: Bench, setting: str, name: str) -> None:
    score(bench, setting, torch.float32, name)


@BOTH_WAYS
@pytest.mark.parametrize("name", [PRODUCT, FASTEST])
@pytest.mark.parametrize("threads", [1])
@FULL
def test_forward_in_bfloat16_on_one_thread(bench: Bench, setting: str, name: str) -> None:
    score(bench, setting, torch.bfloat16, name)


@BOTH_WAYS
@pytest.mark.parametrize("name", [pytest.param("loop", marks=FULL), "torch", FASTEST])
def test_contexts_that_nearly_cancel(bench: Bench, setting: str, name: str) -> None:
    score(bench, setting, torch.float32, name, centred=True)


@BOTH_WAYS
@pytest.mark.parametrize("name", ["loop", *(pytest.param(name, marks=FULL) for name in EINSUMS), "torch", *FUSED])
def test_training_step(bench: Bench, setting: str, name: str) -> None:
    case, options = bench.size(TRAINING_BATCH), SETTINGS[setting]
    inputs = case.inputs()
    if name in EINSUMS:  # which keep gigabytes; square, because the loss is of pairs that belong together
        inputs = inputs.first(32, 32)
    checked = inputs.first(16, 16)
    oracle = checked.to(torch.float64)
    expected = training_step(lambda: scan_loop(oracle, **options), oracle)()
    gradients = training_step(scan(name, checked, options, bench), checked)()
    torch.testing.assert_close([gradient.double() for gradient in gradients], list(expected), rtol=0, atol=1e-3)
    step = training_step(scan(name, inputs, options, bench), inputs)
    bench.describe(f"{setting} training step", case, torch.float32, name)
    bench.measure(inputs, step, training=True)
