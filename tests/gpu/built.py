"""A program that checks the CUDA library of the packages it imports; it needs no GPU.

``python tests/gpu/built.py``, which prints what is installed, then how many operations have kernels.
"""

from __future__ import annotations

import re
import sys

import torch

from crossret_kernels import backends
from crossret_kernels.info import describe

OPERATION = re.compile(r"crossret::\w+_cuda(_backward)?(\.\w+)?")


def main() -> None:
    print(describe())
    if backends.CUDA_MISSING is not None:
        sys.exit(backends.CUDA_MISSING)
    operations = [name for name in torch._C._dispatch_get_all_op_names() if OPERATION.fullmatch(name)]
    without = [name for name in operations if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")]
    if without or not operations:
        sys.exit(f"without kernels for CUDA: {', '.join(sorted(without)) or 'all'}")
    print(f"{len(operations)} operations for CUDA: {', '.join(sorted(operations))}")


if __name__ == "__main__":
    main()
