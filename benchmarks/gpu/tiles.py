"""Times attention with every tile that it may take, on the GPU at hand: python -m benchmarks.gpu.tiles.

What `COSTS` and `STAGES` of crossret_kernels/cross_attention/tiling.py are set by. Beside them, the way of items too
long for a tile.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch

from benchmarks.gpu.cases import CASES, GpuCase
from benchmarks.gpu.results import FUSED
from benchmarks.gpu.run import measure, precision
from benchmarks.gpu.timing import Events, Timer
from crossret_kernels.cross_attention import tiling, triton

LONG = "as too long"
STAGES = (2, 3, 4)


@contextmanager
def only(kernel: str, tile: tuple[int, int], stages: int) -> Iterator[None]:
    """Leaves one tile to choose for a kernel, "forward" or "backward"."""
    with patch.dict(tiling.COSTS, {kernel: {tile: 1.0}}), patch.dict(tiling.STAGES, {kernel: stages}):
        yield


def timings(case: GpuCase, device: torch.device, timer: Timer) -> Iterator[tuple[str, float | str]]:
    """(what was chosen, × the floor, or why there is no figure); of a training step the tile of the gradients."""
    kernel = "backward" if case.training else "forward"
    case = replace(case, implementations=(FUSED,))
    choices = {
        f"{m} × {n}, {stages} stages": only(kernel, (m, n), stages)
        for (m, n), stages in itertools.product(tiling.COSTS[kernel], STAGES)
    }
    choices[LONG] = patch.object(triton, "too_long", lambda *_: True)
    for name, chosen in choices.items():
        missing: dict[str, str] = {}
        with chosen, precision(case.precision):
            made = measure(case, device, timer, missing)
        yield name, made[0].floor_ratio if made else next(iter(missing.values()))


def in_tiles(case: GpuCase) -> bool:
    """Whether attention takes the case's items in tiles: of others every choice is the way of the too long."""
    shorter, longer = sorted((max(case.case.regions), max(case.case.words)))
    return case.setting is not None and longer <= tiling.LARGE and shorter <= tiling.SMALL


def main() -> int:
    if not torch.cuda.is_available():
        print("benchmarks.gpu.tiles: this PyTorch finds no CUDA device", file=sys.stderr)
        return 2
    for case in CASES:
        if in_tiles(case):
            for name, figure in timings(case, torch.device("cuda"), Events()):
                ratio = f"{figure:.2f} × the floor" if isinstance(figure, float) else figure
                print(f"{case.operation}, {case.case}, {case.precision}: {name}: {ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
