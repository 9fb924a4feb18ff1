"""Hardware counters of the dearest kernels, by Nsight Compute: one launch each, a process a kernel, as text.

The whole of it goes to RESULTS/ncu.txt, a line of what tells most to the screen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from benchmarks.gpu.lines import RESULTS, tell
from benchmarks.gpu.session import tool

# A call, the kernel, and which of its launches: one after all has been compiled.
KERNELS = (
    ("triton t2i LSE 1000x5000", "attend", 20),
    ("cuda t2i LSE 1000x5000", "attend", 1),
    ("triton t2i LSE step 512", "similarity_gradients", 4),
    ("cuda t2i LSE step 512", "differentiate", 4),
    ("triton Sum-Max 1x1000", "best_of_tiles", 1),
    ("triton loss softmax", "hinge_statistics", 1),
    ("triton HAN", "cross_weights|matched_pairs", 1),
)
SECTIONS = ("SpeedOfLight", "Occupancy", "LaunchStats", "WarpStateStats", "MemoryWorkloadAnalysis",
            "MemoryWorkloadAnalysis_Tables", "InstructionStats", "SourceCounters")  # fmt: skip
SHORT = {
    "Duration": "duration",
    "Compute (SM) Throughput": "SM",
    "Memory Throughput": "memory",
    "L2 Hit Rate": "L2 hits",
    "Achieved Occupancy": "occupancy",
    "Registers Per Thread": "registers",
    "Warp Cycles Per Issued Instruction": "cycles an instruction",
}
SECONDS = 20  # a kernel, at most


def report(call: str, kernel: str, skipped: int) -> str:
    """Nsight Compute's, of one launch."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    command = [
        tool("ncu") or "ncu", "--clock-control", "none", "--target-processes", "all",
        "--kernel-name", f"regex:{kernel}", "--launch-skip", str(skipped), "--launch-count", "1", *sections,
        sys.executable, "-m", "benchmarks.gpu.calls", call,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    return ran.stdout + ran.stderr


def summary(text: str) -> str:
    """The figures that tell most."""
    found = []
    for name, short in SHORT.items():
        if match := re.search(rf"^\s+{re.escape(name)}\s+(\S+)\s+([\d.,]+)\s*$", text, re.MULTILINE):
            found.append(f"{short} {match[2]} {'' if match[1] == 'register/thread' else match[1]}".strip())
    stalls = re.findall(r"([\d.]+)% of the total average of [\d.]+ cycles", text)
    return ", ".join([*found, f"largest stall {stalls[0]} %"] if stalls else found) or text[-300:]


def main() -> None:
    if tool("ncu") is None:
        tell("counters", "ncu is not here")
        return
    ends = time.monotonic() + float(os.environ.get("SECONDS_OF_STAGE", "1e9"))
    for call, kernel, skipped in KERNELS:
        if time.monotonic() > ends - 5:
            tell("counters", f"{call}, {kernel}: no time left")
            continue
        try:
            text = report(call, kernel, skipped)
        except (subprocess.TimeoutExpired, OSError) as error:
            tell("counters", f"{call}, {kernel}: {type(error).__name__}")
            continue
        with (RESULTS / "ncu.txt").open("a", encoding="utf-8") as file:
            file.write(f"==== {call}, {kernel}\n{text}\n")
        tell("counters", f"{call}, {kernel}: {summary(text)}")


if __name__ == "__main__":
    main()
