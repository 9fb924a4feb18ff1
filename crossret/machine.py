"""The machine that figures are measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe_machine() -> dict[str, str | int]:
    """What a measured figure depends on: CPU model, cores of this process, torch's threads, versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    facts: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    return facts.get("model name") or platform.processor() or platform.machine()
