"""Run as a program: prints by how many MiB the peak of resident memory rose while the named case was computed."""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch

from crossret_kernels import maxsim_scores, maxsim_topk, scan_scores, scan_topk


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(case: str) -> float:
    """MiB beyond inputs, scores and gradients, which are allocated and touched beforehand."""
    torch.set_num_threads(2)
    if case == "scores":
        regions, words = torch.randn(1000, 36, 32), torch.randn(5000, 20, 32)
        kept = torch.ones(1000, 5000)
        before = peak_mebibytes()
        scan_scores(regions, words, backend="cpu")
        return peak_mebibytes() - before - kept.nbytes / 2**20
    if case == "pairs":
        regions, words = torch.randn(100, 2, 8), torch.randn(100, 2, 8)
        pairs = torch.randint(0, 100, (3_000_000, 2))
        before = peak_mebibytes()
        maxsim_scores(regions, words, pairs=pairs, backend="cpu")
        return peak_mebibytes() - before - len(pairs) * 4 / 2**20
    n_regions, n_words, dim = {"gram": (1, 1000, 8), "dense": (36, 20, 32), "sparse": (36, 20, 32)}[case]
    regions = torch.randn(1 if case == "gram" else 512, n_regions, dim, requires_grad=True)
    words = torch.randn(512, n_words, dim, requires_grad=True)
    scores = scan_scores(regions, words, direction="i2t", backend="cpu")
    weights = torch.randn_like(scores)
    if case == "sparse":
        weights[torch.rand_like(weights) < 0.6] = 0
    before = peak_mebibytes()
    torch.autograd.grad(scores, (regions, words), weights)
    return peak_mebibytes() - before - (regions.nbytes + words.nbytes) / 2**20


def run_topk(case: str, path: str) -> float:
    """MiB beyond a corpus that is not in memory: 1 GiB of one row, 192 MB of scores, or a file of 512 MiB."""
    torch.set_num_threads(2)
    for best in (scan_topk, maxsim_topk):  # what the first call loads and allocates for good
        best(torch.ones(2, 1, 64), torch.ones(1, 1, 64), k=1)
    if case == "topk queries":
        regions, words = torch.randn(4_000, 1, 8), torch.randn(12_000, 1, 8)
        before = peak_mebibytes()
        maxsim_topk(regions, words, k=10)
    elif case == "topk corpus":
        corpus = torch.randn(1, 64).expand(2**22, 64), torch.arange(0, 2**22 + 1, 32)
        before = peak_mebibytes()
        scan_topk(corpus, torch.randn(1, 4, 64), k=1000)
    else:
        n, rows = 2**18, 2**21
        with open(path, "wb") as file:
            file.truncate(rows * 64 * 4)
        values = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, 64))
        before = peak_mebibytes()
        maxsim_topk((values, np.arange(0, rows + 1, rows // n)), torch.randn(1, 4, 64), k=10)
    return peak_mebibytes() - before


if __name__ == "__main__":
    print(run_topk(*sys.argv[1:]) if sys.argv[1].startswith("topk") else run(sys.argv[1]))
