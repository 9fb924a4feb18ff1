"""What is timed is right: scores beside those of the loop in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.cases import Inputs

# The loop and the einsums round every intermediate to the inputs' precision.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}


def check_scores(call: Callable[[], Tensor], inputs: Inputs, oracle: Callable[[Inputs], Tensor]) -> None:
    """Compares a corner of what `call` returns for `inputs` with the oracle's scores of it.

    Raises:
        AssertionError: they differ.
    """
    corner = inputs.first(8, 8)
    scores = call()[:8, :8].double()
    expected = oracle(corner.to(torch.float64))
    torch.testing.assert_close(scores, expected, rtol=0, atol=TOLERANCES[inputs.regions.dtype])
