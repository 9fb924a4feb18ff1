"""What every benchmark records beside its times: the processor, the threads, the instruction set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

THREADS = 2


def processor() -> str:
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return match.group(1) if match else "unknown"


@pytest.fixture(autouse=True)
def machine(benchmark: Any) -> None:
    torch.set_num_threads(THREADS)
    benchmark.extra_info.update(
        processor=processor(),
        threads=THREADS,
        torch=torch.__version__,
        isas=torch.ops.crossret.cpu_isas(),
    )
