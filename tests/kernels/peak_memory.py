"""A program for tests of memory: prints by how many MiB the peak of resident memory rose as each case was computed.

``python -m tests.kernels.peak_memory BOUND CASE…``; a case that rises beyond the bound is computed up to three times,
and the least counts: where memory is short, pages that the system takes away and the case brings back only add.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossret_kernels import (
    HeterogeneousLayer,
    ScanAttended,
    attention_pool,
    gated_attention_scores,
    heterogeneous_scores,
    maxsim_argmax,
    maxsim_scores,
    maxsim_topk,
    scan_attend,
    scan_attend_scores,
    scan_attention,
    scan_scores,
    scan_topk,
)
from tests.kernels.gated_attention.batches import gated_features, gated_parameters
from tests.kernels.subprocesses import run_python

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}

SELECTIONS: dict[str, Callable[[], dict[str, Any]]] = {  # their lists take 76 MiB
    "candidates": lambda: {"candidates": torch.randint(100, (5000, 1000)), "direction": "i2t", "query": "caption"},
    "int32 pairs": lambda: {"pairs": torch.randint(100, (5_000_000, 2), dtype=torch.int32)},
    "argmax": lambda: {"candidates": torch.randint(100, (5000, 1000), dtype=torch.uint8)},
}


def resident_mebibytes(field: str) -> float:
    """VmRSS, or VmHWM: its peak. Those of getrusage would begin with the peak of the process that started this one."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)[0]) / 1024


def rise(work: Callable[[], Any]) -> float:
    """MiB by which `work` raises the peak above what is in use before, its result included."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    before = resident_mebibytes("VmRSS")
    work()
    return resident_mebibytes("VmHWM") - before


def mebibytes(*tensors: Tensor) -> float:
    return sum(tensor.nbytes for tensor in tensors) / 2**20


def warm_up() -> None:
    """Maps the code, imports the modules and starts the threads that every call needs."""
    for function in (maxsim_scores, scan_scores):
        sides = [torch.randn(50, 2, 8).requires_grad_() for _ in range(2)]
        torch.autograd.grad(function(*sides, backend="cpu"), sides, torch.ones(50, 50))


def run(case: str) -> float:
    """MiB beyond inputs, scores and gradients."""
    torch.set_num_threads(2)
    warm_up()
    if case == "scores":
        regions, words = torch.randn(1000, 12, 16), torch.randn(5000, 6, 16)  # all similarities would take 1.3 GiB
        return rise(lambda: scan_scores(regions, words, backend="cpu")) - 1000 * 5000 * 4 / 2**20
    if case == "threads":
        torch.set_num_threads(16)
        corpus = torch.randn(1, 1024).expand(4000 * 36, 1024), torch.arange(0, 4000 * 36 + 1, 36)  # one row in memory
        return rise(lambda: scan_scores(corpus, torch.randn(20, 20, 1024), backend="cpu"))
    if case == "both":  # 29 MiB of factors
        corpus = torch.randn(1, 64).expand(4000 * 36, 64), torch.arange(0, 4000 * 36 + 1, 36)
        return rise(lambda: scan_scores(corpus, torch.randn(20, 20, 64), direction="both", backend="cpu"))
    if case == "slice":  # a copy of it would take 98 MiB
        regions, words = torch.randn(700, 40, 1024), torch.randn(2, 5, 1024)
        return rise(lambda: (scan_scores(regions[:, :36], words), maxsim_scores(regions[:, :36], words)))
    if case == "pairs":
        regions, words = torch.randn(100, 2, 8), torch.randn(100, 2, 8)
        pairs = torch.randint(0, 100, (3_000_000, 2))
        return rise(lambda: maxsim_scores(regions, words, pairs=pairs, backend="cpu")) - len(pairs) * 4 / 2**20
    if case in SELECTIONS:
        regions, words = torch.randn(100, 2, 8), torch.randn(5000, 2, 8)
        function: Callable[..., Any] = maxsim_argmax if case == "argmax" else maxsim_scores
        options = SELECTIONS[case]()
        (selection,) = (options[name] for name in ("pairs", "candidates") if name in options)
        begin = {name: value[:66] if value is selection else value for name, value in options.items()}
        function(regions, words if "pairs" in options else words[:66], backend="cpu", **begin)  # loads for good
        scores = 4 * (len(selection) if "pairs" in options else selection.numel())
        results = scores * 5 if case == "argmax" else scores  # two int64 for each float32
        return rise(lambda: function(regions, words, backend="cpu", **options)) - results / 2**20
    if case.startswith("attention"):
        words, pairs = torch.randn(3, 5, 512), torch.tensor([[7, 1]])
        scan_attention(words, words, pairs=pairs - pairs)  # loads what the first call does
        lengths = torch.arange(1000) % 36 + 1
        regions = torch.randn(1000, 36, 512)  # 70 MiB
        if case == "attention packed":
            offsets = torch.arange(0, 36001, 36)
            return rise(lambda: scan_attention((regions.view(-1, 512), offsets), words, pairs=pairs))
        return rise(lambda: scan_attention(regions, words, lengths, pairs=pairs))
    if case == "attend candidates":  # a slice of all pairs that are listed at once would take 256 MiB
        leaves = [torch.randn(n, 1, 512) for n in (10, 100)]
        candidates = torch.randint(10, (100, 1400))
        scan_attend(*leaves, candidates=candidates[:, :2], backend="cpu")
        return rise(lambda: scan_attend(*leaves, candidates=candidates, backend="cpu")) - 140_000 * 515 * 4 / 2**20
    if case == "attend scores":  # attended vectors of all pairs would take 256 MiB, and their differences as much
        layer = torch.nn.Linear(256, 1)
        leaves = [torch.randn(64, n, 256).requires_grad_() for n in (36, 64)]

        def step(n: int) -> tuple[Tensor, ...]:
            def score(made: ScanAttended, queries: Tensor, *_: Tensor) -> Tensor:
                return layer((made.attended - queries).square().mean(1)).squeeze(1)

            scores = scan_attend_scores(leaves[0][:n], leaves[1][:n], score, workspace_bytes=2**24)
            return torch.autograd.grad(scores.sum(), [*leaves, *layer.parameters()])

        step(1)
        return rise(lambda: step(64)) - mebibytes(*leaves)
    if case.startswith("attend"):  # 4,000 pairs; what is kept of them until gradients are made would take 500 MiB
        half = case == "attend bfloat16"
        leaves = [torch.randn(100, n, 128).to(torch.bfloat16 if half else torch.float32) for n in (160, 100)]
        pairs = torch.cartesian_prod(torch.arange(100), torch.arange(40))
        for leaf in leaves:
            leaf.requires_grad_()
        if case == "attend forward":
            return rise(lambda: scan_attend(*leaves, pairs=pairs, backend="cpu")) - 4000 * 100 * (128 + 161) * 4 / 2**20
        made = scan_attend(*leaves, pairs=pairs, backend="cpu")
        grads = [torch.ones_like(x) for x in made]
        return rise(lambda: torch.autograd.grad(made, leaves, grads)) - mebibytes(*leaves)
    if case.startswith("gated"):
        return gated_rise(case)
    if case.startswith("heterogeneous"):
        return heterogeneous_rise(case)
    if case == "maxsim backward":  # 180 MiB of similarities
        leaves = [torch.randn(256, 36, 32).requires_grad_(), torch.randn(256, 20, 32).requires_grad_()]
        scores = maxsim_scores(*leaves, backend="cpu")
        return rise(lambda: torch.autograd.grad(scores, leaves, torch.ones_like(scores))) - mebibytes(*leaves)
    if case == "pool":  # 144 MiB of values, whose padding a copy hides
        values, logits = torch.randn(4096, 36, 256).requires_grad_(), torch.randn(4096, 36, 4).requires_grad_()
        lengths = torch.randint(1, 37, (4096,))
        return rise(lambda: attention_pool(values, logits, lengths)) - 4096 * 4 * 256 * 4 / 2**20
    dtype = HALF.get(case, torch.float32)
    n_images, n_captions, n_regions, n_words, dim = {
        "gram": (1, 512, 1, 1000, 8),
        "dense": (256, 256, 36, 20, 32),  # 180 MiB of attention
        "expanded": (4300, 4300, 1, 1, 4),  # a copy of the weights would take 71 MiB
        "sparse": (256, 256, 36, 20, 32),
        "both backward": (700, 400, 36, 20, 36),  # 7 MiB of factors, 0.9 GiB of attention
        "bfloat16": (171, 75, 36, 36, 2048),  # 48 and 21 MiB of sums
        "float16": (1000, 4, 36, 20, 512),  # 70 and 0.2 MiB
    }[case]
    regions = torch.randn(n_images, n_regions, dim, dtype=dtype).requires_grad_()
    words = torch.randn(n_captions, n_words, dim, dtype=dtype).requires_grad_()
    direction = "both" if case.startswith("both") else "i2t"
    scores = scan_scores(regions, words, direction=direction, backend="cpu")
    weights = torch.ones(()).expand_as(scores) if case == "expanded" else torch.randn_like(scores)
    if case in ("sparse", "bfloat16"):
        weights[torch.rand_like(weights) < (0.99 if case == "bfloat16" else 0.6)] = 0
    return rise(lambda: torch.autograd.grad(scores, (regions, words), weights, retain_graph=True)) - mebibytes(
        regions, words
    )


def gated_rise(case: str) -> float:
    """MiB beyond inputs, scores and gradients of SMAN's step at a training batch, or of many listed pairs."""
    torch.set_num_threads(1)
    listed = case == "gated pairs"  # whose keys and values would take 200 MiB, and their gradients too
    counts, dim = ((200, 300), 256) if listed else ((128, 128), 512)
    (regions, words), lengths = gated_features(*counts, 49, (6, 20), dim)
    contexts = [torch.randn(n, 2, dim) for n in counts]
    parameters = gated_parameters(dim, dim, dim, dim, dim)
    pairs = torch.stack([torch.randint(n, (1500,)) for n in counts], 1) if listed else None
    leaves = [x.requires_grad_() for x in (regions, words, *contexts, *parameters.flat())]

    def score(few: int | None = None) -> Tensor:
        return gated_attention_scores(
            regions[:few], words[:few], word_lengths=lengths[:few], region_contexts=contexts[0][:few],
            word_contexts=contexts[1][:few], parameters=parameters, pairs=None if few else pairs,
        )  # fmt: skip

    torch.autograd.grad(score(2).sum(), leaves)  # loads what the first call does
    if case == "gated forward":
        with torch.no_grad():
            return rise(score)
    return rise(lambda: torch.autograd.grad(score().sum(), leaves)) - mebibytes(*leaves)


def heterogeneous_rise(case: str) -> float:
    """MiB beyond inputs and gradients of HAN's layers, over all pairs, or over listed pairs of long items."""
    torch.set_num_threads(1)
    long = case == "heterogeneous long"  # whose logits are a hundred times their features
    counts, rows, dim, n_layers = {
        "heterogeneous": ((16, 48), (32, 20), 256, 2),
        "heterogeneous one layer": ((64, 64), (32, 20), 512, 1),
        "heterogeneous long": ((4, 6), (300, 300), 32, 1),
        "heterogeneous words": ((2, 192), (400, 1), 512, 1),
    }[case]
    sides = [torch.randn(n, length, dim) for n, length in zip(counts, rows, strict=True)]
    parameters = [
        torch.randn(*(dim,) * (2 if name.endswith("weight") and not name.startswith("norm") else 1)) / dim**0.5
        for name in HeterogeneousLayer._fields
    ]
    leaves = [tensor.requires_grad_() for tensor in (*sides, *parameters)]
    layers = [HeterogeneousLayer(*leaves[2:])] * n_layers

    def step(n_images: int, n_captions: int) -> tuple[Tensor, ...]:
        pairs = torch.cartesian_prod(torch.arange(n_images), torch.arange(n_captions)) if long else None
        scores = heterogeneous_scores(leaves[0][:n_images], leaves[1][:n_captions], layers=layers, pairs=pairs)
        return torch.autograd.grad(scores.sum(), leaves)

    step(1, 1)  # loads what the first call does
    return rise(lambda: step(*counts)) - mebibytes(*leaves)


def topk_rise(case: str) -> float:
    """MiB beyond a corpus that is not in memory: 1 GiB of one row, 192 MB of scores, or a file of 512 MiB."""
    torch.set_num_threads(2)
    for best in (scan_topk, maxsim_topk):  # what the first call loads and allocates for good
        best(torch.ones(2, 1, 64), torch.ones(1, 1, 64), k=1)
    if case == "topk queries":
        regions, words = torch.randn(4_000, 1, 8), torch.randn(12_000, 1, 8)
        return rise(lambda: maxsim_topk(regions, words, k=10))
    if case == "topk corpus":
        corpus = torch.randn(1, 64).expand(2**22, 64), torch.arange(0, 2**22 + 1, 32)
        return rise(lambda: scan_topk(corpus, torch.randn(1, 4, 64), k=1000))
    n, rows = 2**18, 2**21
    with tempfile.TemporaryFile() as file:
        file.truncate(rows * 64 * 4)
        values = np.memmap(file, dtype=np.float32, mode="r", shape=(rows, 64))
        offsets = np.arange(0, rows + 1, rows // n)
        return rise(lambda: maxsim_topk((values, offsets), torch.randn(1, 4, 64), k=10))


def least_rise(case: str, bound: float) -> float:
    least = float("inf")
    for _ in range(3):
        least = min(least, topk_rise(case) if case.startswith("topk") else run(case))
        if least <= bound:
            break
    return least


def assert_peaks_rise_by_at_most(bound: int, *cases: str, **environment: str) -> None:
    process = run_python("-m", "tests.kernels.peak_memory", str(bound), *cases, **environment)
    assert process.returncode == 0, process.stderr
    rises = dict(zip(cases, map(float, process.stdout.split()), strict=True))
    assert max(rises.values()) <= bound, rises


def main(bound: float, *cases: str) -> None:
    """Each case in a process of its own, as what one keeps would hide what the next takes; imports are made once."""
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # as the first gradient does, in each
    for case in cases:
        if os.fork() == 0:
            print(least_rise(case, bound), flush=True)
            sys.exit()
        if os.wait()[1] != 0:
            sys.exit(f"{case!r} failed")


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
