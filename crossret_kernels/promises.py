"""Promises of bits and errors, by backend and operation: pages print them, and tests hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

RESULTS, GRADIENTS, DIGITS = 2, 3, 4
"""How many times what eager PyTorch loses against float64 results and gradients may lose, and beside it how many ε of
the greatest number, or of 1: what eager avoids by luck. What is of half precision is rounded once more."""


class Bits(NamedTuple):
    """Whether a backend's results have the same bits: run to run, by any number of threads, on any processor.

    None: there are no threads of the CPU that work on them.
    """

    again: bool
    threads: bool | None
    processors: bool


BITS: Mapping[str, Bits] = {
    "cpu": Bits(again=True, threads=True, processors=False),
    "torch": Bits(again=True, threads=False, processors=False),
    "triton": Bits(again=True, threads=None, processors=False),
    "cuda": Bits(again=True, threads=None, processors=False),
}

OPERATIONS = (
    *("scan_scores", "maxsim_scores", "scan_attend", "gated_attention_scores", "heterogeneous_scores"),
    *("attention_pool", "triplet_loss", "infonce_loss", "sigmoid_loss"),
)
# Where kernels multiply in bfloat16.
_NARROW = {"cpu": {torch.bfloat16: ("heterogeneous_scores",)}}


def unit_of(operation: str, backend: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype at which eager PyTorch loses what the errors of an operation are counted in, of features of a dtype."""
    narrow = operation in _NARROW.get(backend, {}).get(dtype, ())
    return dtype if narrow else torch.promote_types(dtype, torch.float32)
