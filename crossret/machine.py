"""The machine that figures are measured on."""

from __future__ import annotations

import platform

import torch

from crossret import system


def describe_machine() -> dict[str, str | int]:
    """Facts that a measured figure depends on: CPU model, cores of this process, torch's threads, versions."""
    return {
        "cpu": system.cpu_model() or platform.processor() or platform.machine(),
        "cores": system.cores(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
