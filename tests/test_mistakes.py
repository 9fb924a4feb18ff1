"""What is told of an error that its user can do something about."""

from __future__ import annotations

import pytest
import torch

from crossret.mistakes import mistake
from crossret_kernels import UnsupportedByBackend


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("too wide"), "too wide"),
        (OSError(2, "No such file or directory", "train_ims.npy"), "train_ims.npy: No such file or directory"),
        (OSError(28, "No space left on device", "standard output"), "standard output: No space left on device"),
        (MemoryError("of 9 GiB"), "not enough memory: of 9 GiB"),
        (UnsupportedByBackend("cuda: no device"), "cuda: no device"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nGPU 0 has …"),
            "CUDA out of memory: --encode-chunk and --amp train in less, as does a smaller --batch-size",
        ),
        (
            torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
            "CUDA error: out of memory: --encode-chunk and --amp train in less, as does a smaller --batch-size",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`: --encode-chunk and --amp "
            "train in less, as does a smaller --batch-size",
        ),
        (RuntimeError("sizes do not match"), None),
        (TypeError("a bug"), None),
    ],
)
def test_mistakes_have_words_and_bugs_have_none(error: Exception, message: str | None) -> None:
    assert mistake(error) == message


def test_memory_that_torch_cannot_have_is_a_mistake_in_one_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    message = mistake(caught.value)
    assert message is not None
    assert message.startswith("not enough memory: ")
    assert "\n" not in message
