"""Mistakes that a user can mend, in words: everything else that goes wrong is a bug."""

from __future__ import annotations

# How a GPU's memory runs out elsewhere than in torch's allocator: torch's AcceleratorError, cuBLAS and cuDNN.
_OUT_OF_MEMORY = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
                  "CUBLAS_STATUS_NOT_INITIALIZED")  # fmt: skip


def mistake(error: Exception) -> str | None:
    """The only place that words mistakes: code raises ValueError or OSError for what it cannot use.

    Args:
        error: raised by a command, or by a step of one in a process of its own.

    Returns:
        A line for the user, or None where ``error`` is a bug.
    """
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, (ValueError, FloatingPointError)):
        return str(error)
    if isinstance(error, RuntimeError):
        from torch import OutOfMemoryError  # torch, which takes seconds, is there by now or never

        from crossret_kernels import UnsupportedByBackend

        text = str(error)
        # Text behind the first sentence is torch's own bookkeeping, or the code of a failed launch or library's handle.
        first = text.split("\n")[0].split(". ")[0].rstrip(".")
        if isinstance(error, OutOfMemoryError) or any(mark in text for mark in _OUT_OF_MEMORY):
            return f"{first}: --encode-chunk and --amp train in less, as does a smaller --batch-size"
        if "DefaultCPUAllocator" in str(error):  # the only mark of torch's allocation errors on the CPU
            return f"not enough memory: {str(error).splitlines()[0]}"
        if isinstance(error, UnsupportedByBackend):
            return str(error)
    return None
