"""Every operation of backend "cuda" under compute-sanitizer: memcheck, then races in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from benchmarks.gpu.lines import tell
from benchmarks.gpu.session import tool

# Every tensor has an allocation of its own, with bounds, in which nothing is written yet. Races are in shared memory,
# so that only our kernels are looked at. What the driver answers torch is no concern of ours; our calls are checked.
TOOLS = (("memcheck",), ("racecheck", "--kernel-name", "kns=crossret"), ("initcheck",))


def main() -> int:
    if not torch.cuda.is_available() or tool("compute-sanitizer") is None:
        tell("sanitizer", "compute-sanitizer, of the CUDA toolkit, or a GPU is not here")
        return 0
    failed = 0
    for arguments in TOOLS:
        command = [
            str(tool("compute-sanitizer")), "--tool", *arguments, "--report-api-errors", "no", "--error-exitcode", "1",
            sys.executable, "-m", "tests.gpu.every_operation",
        ]  # fmt: skip
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        last = "; ".join(ran.stdout.strip().splitlines()[-2:])
        tell("sanitizer", f"{arguments[0]}: {'ok' if ran.returncode == 0 else 'FAILED'}: {last[-400:]}")
        failed |= ran.returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
