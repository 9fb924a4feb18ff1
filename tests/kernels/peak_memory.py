"""Run as a program: prints by how many MiB the peak of resident memory rose while the named case was computed."""

from __future__ import annotations

import resource
import sys

import torch

from crossret_kernels import maxsim_scores, scan_scores


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


if __name__ == "__main__":
    print(run(sys.argv[1]))
