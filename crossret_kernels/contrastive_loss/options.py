"""Options of the contrastive losses, checked, and as operations take them; the numbers that logits are made by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from crossret_kernels.inputs.options import Coded, check_number
from crossret_kernels.inputs.score_matrix import REDUCTIONS

Number = float | Tensor
KEPT = 8  # numbers of every positive, float32, that kernels of InfoNCE keep for its gradient


@dataclass(frozen=True)
class InfoNceOptions(Coded):
    """Options of InfoNCE besides scores, their scale and ids; ValueError or TypeError where a value is none."""

    schema: ClassVar[str] = "float label_smoothing, int reduction"
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {"reduction": REDUCTIONS}
    label_smoothing: float
    reduction: str

    def __post_init__(self) -> None:
        self.check()
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, not {self.label_smoothing!r}")
        self.carry()


@dataclass(frozen=True)
class SigmoidOptions(Coded):
    """Options of the sigmoid loss, with the same errors."""

    schema: ClassVar[str] = "int reduction"
    modes: ClassVar[Mapping[str, tuple[str, ...]]] = {"reduction": REDUCTIONS}
    reduction: str

    def __post_init__(self) -> None:
        self.check()
        self.carry()


def as_number(value: Number, name: str, scores: Tensor) -> Tensor:
    """A scalar where the scores are, in their dtype but at least float32, with its gradient where it has one.

    Raises a ValueError or TypeError that names the argument where it is no finite number and no floating-point scalar.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if not isinstance(value, Tensor):
        return scores.new_full((), check_number(name, value), dtype=dtype)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a number or a floating-point scalar, not {value.dtype}")
    if value.dim() != 0:
        raise ValueError(f"{name} must be a scalar, got shape {tuple(value.shape)}")
    return value.to(scores.device, dtype)
