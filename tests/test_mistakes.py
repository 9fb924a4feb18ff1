"""What is told of an error that its user can do something about, also of one in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from crossret.comparison.process import run_step
from crossret.comparison.steps import Step
from crossret.mistakes import mistake
from crossret_kernels import UnsupportedByBackend


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("too wide"), "too wide"),
        (FloatingPointError("the loss is NaN"), "the loss is NaN"),
        (OSError(2, "No such file or directory", "train_ims.npy"), "train_ims.npy: No such file or directory"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (OSError(28, "No space left on device", "standard output"), "standard output: No space left on device"),
        (ChildProcessError("it ended"), "it ended"),
        (MemoryError("of 9 GiB"), "not enough memory: of 9 GiB"),
        (UnsupportedByBackend("cuda: no device"), "cuda: no device"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nGPU 0 has …"),
            "CUDA out of memory: --encode-chunk and --amp train in less, as does a smaller --batch-size",
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


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        ("torch.empty(2**60)", ValueError, "^not enough memory: .*DefaultCPUAllocator"),
        ("os.kill(os.getpid(), 15)", ChildProcessError, "^the process to train it was ended by SIGTERM$"),
        ("os.kill(os.getpid(), 10)", ChildProcessError, "^the process to train it was ended by SIGUSR1$"),
        ("torch.empty(2).reshape(3)", ChildProcessError, "ended unexpectedly, with exit status 1$"),
    ],
)
def test_a_step_tells_mistakes_and_dies_of_bugs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, error: type[Exception], message: str
) -> None:
    program = (
        "import os, torch; from crossret.comparison import process\n"
        f"process._STEPS['train'] = lambda step: {work}\n"
        "process.serve()"
    )
    monkeypatch.setattr("crossret.comparison.process._PROGRAM", program)
    with pytest.raises(error, match=message):
        run_step("train", Step("scan", {}, {}, tmp_path, "test", tmp_path, 1))
