"""``python -m crossret_kernels.warmup``: what it compiles is what a training launches."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from crossret_kernels import scan_scores, warmup
from crossret_kernels.backends import INTERPRETED

pytest.importorskip("triton")

from crossret_kernels.gpu import triton_launch
from tests.kernels.gpu.offline import recorded

on_no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
compiling = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")


@on_no_device
@compiling
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert warmup.main(["scan"]) == 2
    assert capsys.readouterr() == ("", "nothing can be compiled: this PyTorch finds no CUDA device\n")


@compiling
@pytest.mark.parametrize("layout", [[], ["--packed"], ["--masks"], ["--pairs"]], ids=str)
def test_a_training_launches_what_was_compiled(
    layout: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warmup, "DEVICE", torch.device("cpu"))
    shapes = ["--dtype", "bfloat16", "--dim", "64", "--regions", "12", "--words", "9", "24", "--batch", "5"]
    with recorded():
        assert warmup.main(["scan", "direction=i2t", "lambda_softmax=4.0", *shapes, *layout]) == 0
        compiled = set(triton_launch._compiled)
        sides = [torch.zeros(7, n, 64, dtype=torch.bfloat16, requires_grad=True) for n in (12, 17)]
        given: dict[str, Any] = {"direction": "i2t", "lambda_softmax": 4.0, "backend": "triton"}
        if layout == ["--masks"]:
            given["word_mask"] = torch.arange(17) < torch.arange(7)[:, None] + 1
        if layout == ["--pairs"]:
            given["candidates"] = torch.zeros(7, 3, dtype=torch.int64)
        if layout != ["--packed"]:
            given["region_lengths"] = torch.arange(7) + 1
        features = [list(side) for side in sides] if layout == ["--packed"] else sides
        scan_scores(*features, **given).sum().backward()
        assert compiled == set(triton_launch._compiled)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    counts = []
    for number, (line, words) in enumerate(zip(lines, (9, 24), strict=True), 1):
        what = rf"\[{number}/2\] scan_scores, bfloat16, D = 64, 12 regions, {words} words"
        found = re.fullmatch(rf"{what}: (\d+) kernels in \d+\.\d s", line)
        assert found is not None, line
        counts.append(int(found[1]))
    assert sum(counts) == len(compiled)


def test_options_are_keyword_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    given = warmup.parsed(["scan", "normalize=True", "pooling=lse", "empty_score=None"])
    assert dict(given.options) == {"normalize": True, "pooling": "lse", "empty_score": None}
    with pytest.raises(SystemExit):
        warmup.parsed(["scan", "lse"])
    assert "it must be NAME=VALUE, not 'lse'" in capsys.readouterr().err
