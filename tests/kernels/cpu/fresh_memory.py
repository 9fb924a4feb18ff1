"""A program for test_memory.py: writes the bits of many scores and gradients to a file, over fresh memory of any kind.

``python -m tests.kernels.cpu.fresh_memory OUTPUT [--fill]``; with --fill every tensor that torch hands out
uninitialised holds NaN.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import torch
from torch import Tensor

from crossret_kernels import (
    heterogeneous_scores,
    maxsim_scores,
    scan_attend,
    scan_scores,
)
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.tolerance import ISAS

N_IMAGES, N_CAPTIONS, LONGEST_CAPTION = 4, 40, 11  # words for more than one block
SHAPES = ((5, 3), (13, 33))  # regions and dimensions
KINDS = ((torch.float32, False), (torch.bfloat16, True))  # dtype, normalize
OPTIONS = [
    *((scan_scores, {"raw_feature_norm": norm, "pooling": pooling, "direction": direction})
      for norm, pooling in (("clipped_l2norm", "lse"), ("l1norm", "avg"), ("softmax", "max"), ("no_norm", "sum"))
      for direction in ("t2i", "i2t", "both")),
    *((maxsim_scores, {"direction": direction}) for direction in ("t2i", "i2t")),
]  # fmt: skip


def results() -> list[Tensor]:
    """Scores and gradients of padded batches, all pairs and some, on every instruction set."""
    collected: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)
    for (regions, dim), (dtype, normalize) in itertools.product(SHAPES, KINDS):
        sides = [
            torch.randn(n, longest, dim, generator=generator).to(dtype).requires_grad_()
            for n, longest in ((N_IMAGES, regions), (N_CAPTIONS, LONGEST_CAPTION))
        ]
        lengths = [torch.randint(1, side.size(1) + 1, (side.size(0),), generator=generator) for side in sides]
        some = torch.stack([torch.randint(n, (15,), generator=generator) for n in (N_IMAGES, N_CAPTIONS)], 1)
        for (function, options), isa, pairs in itertools.product(OPTIONS, ISAS, (None, some)):
            torch.ops.crossret.select_cpu_isa(isa)
            scores = function(*sides, *lengths, normalize=normalize, pairs=pairs, backend="cpu", **options)
            collected += [scores, *torch.autograd.grad(scores.square().sum(), sides)]
        for isa, direction in itertools.product(ISAS, ("t2i", "i2t")):
            torch.ops.crossret.select_cpu_isa(isa)
            made = scan_attend(*sides, *lengths, normalize=normalize, pairs=some, backend="cpu", direction=direction)
            collected += [*made, *torch.autograd.grad([x.square().sum() for x in made], sides)]
    for isa, matching, (dtype, _) in itertools.product(ISAS, ("local", "global"), KINDS):
        torch.ops.crossret.select_cpu_isa(isa)
        sides = [torch.randn(n, longest, 36, generator=generator) for n, longest in ((3, 7), (40, 9))]
        sides = [side.to(dtype).requires_grad_() for side in sides]
        lengths = torch.tensor([3, 7, 1]), torch.arange(40) % 9 + 1
        layers = make_layers(1, 36, dtype)
        scores = heterogeneous_scores(*sides, *lengths, layers=layers, matching=matching, backend="cpu")
        collected += [scores, *torch.autograd.grad(scores.square().sum(), sides)]
    return [tensor.detach().float().flatten() for tensor in collected]


def main() -> None:
    if "--fill" in sys.argv:
        torch.use_deterministic_algorithms(True)
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(5).isnan().all()
    np.save(sys.argv[1], torch.cat(results()).numpy())


if __name__ == "__main__":
    main()
