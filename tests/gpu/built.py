"""A program that checks the CUDA library of the packages it imports; it needs no GPU.

``python tests/gpu/built.py``, which prints what is installed, then how many operations have kernels.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from importlib import import_module

import torch

import crossret_kernels
from crossret_kernels import backends
from crossret_kernels.info import describe

OPERATION = re.compile(r"crossret::\w+_cuda(_backward)?(\.\w+)?")


def operations() -> list[str]:
    """Those of backend "cuda", by name."""
    for module in pkgutil.walk_packages(crossret_kernels.__path__, "crossret_kernels."):
        if ".cuda." in module.name:  # host code, which is imported where it is called: its launches are operations too
            import_module(module.name)
    return sorted(name for name in torch._C._dispatch_get_all_op_names() if OPERATION.fullmatch(name))


def main() -> None:
    print(describe())
    if backends.CUDA_MISSING is not None:
        sys.exit(backends.CUDA_MISSING)
    found = operations()
    without = [name for name in found if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")]
    if without or not found:
        sys.exit(f"without kernels for CUDA: {', '.join(without) or 'all'}")
    print(f"{len(found)} operations for CUDA: {', '.join(found)}")


if __name__ == "__main__":
    main()
