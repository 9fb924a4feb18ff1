"""Rates of the card, which all floors are made of: copies, products of aligned rows, launches."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.gpu.inputs import DTYPES, precision
from benchmarks.gpu.lines import tell, told
from benchmarks.gpu.timing import Events, median_seconds, replay_of

QUERY = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,memory.used"
COPIED = 2**30
SIDE = 8192  # rows and columns of multiplied matrices
LAUNCHES = 200


@triton.jit
def nothing(x):
    """A launch alone."""
    tl.store(x, 0.0)


def rates() -> dict[str, float]:
    """Flop a second by precision, and bytes a second of copies, as the last `facts` of this run found them."""
    found: dict[str, float] = {}
    for line in told(stage="facts"):
        found.update(line.get("rates", {}))
    return found


def wall(call: Callable[[], Any], repeats: int = LAUNCHES) -> float:
    """Seconds of the host's and the device's a call, made one after the other."""
    call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / repeats


def main() -> None:
    if not torch.cuda.is_available():
        tell("facts", "no CUDA device: nothing is measured")
        return
    try:
        card = subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"], capture_output=True, text=True)
        tell("facts", card.stdout.strip() or card.stderr.strip())
    except OSError as error:
        tell("facts", f"nvidia-smi: {error}")
    timer, device = Events(), torch.device("cuda")
    whole = torch.empty(COPIED, dtype=torch.uint8, device=device)
    other = torch.empty_like(whole)
    seconds, _ = median_seconds([lambda: other.copy_(whole)], timer)
    tell("facts", f"copy: {2 * COPIED / seconds / 1e12:.2f} TB/s", rates={"copy": 2 * COPIED / seconds})
    numbers = whole.view(torch.float32)
    seconds, _ = median_seconds([lambda: numbers.sum()], timer)
    tell("facts", f"read: {COPIED / seconds / 1e12:.2f} TB/s", rates={"read": COPIED / seconds})
    for name, dtype in DTYPES.items():
        with precision(name):
            sides = [torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2)]
            seconds, _ = median_seconds([lambda sides=sides: sides[0] @ sides[1].T], timer)
        rate = 2 * SIDE**3 / seconds
        tell("facts", f"product, {name}: {rate / 1e12:.0f} TFLOP/s", rates={name: rate})
    one = torch.zeros(1, device=device)
    graph = replay_of(lambda: one.add_(1))
    for what, call in {
        "an operation of PyTorch": lambda: one.add_(1),
        "a launch by Triton": lambda: nothing[(1,)](one),
        "a replay of a graph of one operation": graph,
        "an allocation": lambda: torch.empty(1 << 20, device=device),
    }.items():
        tell("facts", f"{what}: {wall(call) * 1e6:.1f} µs", launch={what: wall(call) * 1e6})


if __name__ == "__main__":
    main()
