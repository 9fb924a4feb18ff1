"""Scale of brightness and shades for weights: the same in every picture of a sheet, and on all of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEARLY_UNIFORM = 1.5  # weights are, where the largest is less than so many times their mean
LEAST_FULL = 2.0  # means that full brightness stands for at least: more than any nearly uniform weight
DISPLAY_GAMMA = 2.2  # pixel values are not proportional to light; the light that the eye gets shall be, to weights
DARKEST = 0.2  # brightness where nothing looks at all: the image stays recognisable


@dataclass(frozen=True)
class Scale:
    """Scale of brightness and shades for weights: the same in every panel of a sheet.

    Attributes:
        mean: of all weights, and what each is where they are uniform.
        full: the weight of full brightness or shade: the sheet's largest, or ``LEAST_FULL`` means where that is more,
            or weights that hardly differ would look as if they did.
    """

    mean: float
    full: float

    @classmethod
    def of(cls, weights: Sequence[Sequence[float] | NDArray[np.float32]]) -> Scale:
        """The scale of a sheet with these weights, a sequence a panel."""
        values = np.concatenate(weights).astype(np.float64)
        return cls(values.mean(), max(values.max(), LEAST_FULL * values.mean()) or 1.0)

    def light(self, weight: Any) -> Any:
        """How bright a weight is, 0 to 1, as pixels have it."""
        return (weight / self.full) ** (1 / DISPLAY_GAMMA)

    def shade(self, weight: Any) -> Any:
        """How shaded the word of a weight is, 0 to 1: not at all up to the mean, so that uniform weights shade none."""
        return np.maximum(weight - self.mean, 0) / (self.full - self.mean)


def nearly_uniform(weights: NDArray[Any]) -> bool:
    """Whether the largest of these weights is less than ``NEARLY_UNIFORM`` times their mean."""
    return bool(weights.max() < NEARLY_UNIFORM * weights.mean(dtype=np.float64))
