"""No batch of a training compiles Triton kernels that the first of its shapes did not."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import (
    heterogeneous_scores,
    maxsim_scores,
    scan_scores,
)
from crossret_kernels.backends import INTERPRETED

pytest.importorskip("triton")

from crossret_kernels.cross_attention.triton import chunks, feature_gradients
from crossret_kernels.gpu import triton_launch
from crossret_kernels.gpu.tuning import Attention, HeterogeneousTuning, SumMax
from tests.kernels.gpu.offline import recorded
from tests.kernels.heterogeneous_attention.calls import make_layers

pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")

BATCHES = [(24, 40), (2, 2), (4, 4), (11, 11), (3, 150), (150, 3), (64, 33), (128, 128)]  # images, captions


def step(function: Any, sides: list[Tensor], lengths: list[Tensor], packed: bool, **options: Any) -> None:
    """Scores and gradients of ragged items, the last of as many rows as there are."""
    given: tuple[Any, ...] = (*sides, *lengths)
    if packed:
        sides = [side.flatten(0, 1)[: int(own.sum())] for side, own in zip(sides, lengths, strict=True)]
        offsets = [torch.cat([torch.zeros(1, dtype=torch.int64), own.cumsum(0)]) for own in lengths]
        given = tuple(zip(sides, offsets, strict=True))
    scores = function(*given, backend="triton", **options)
    torch.autograd.grad(scores, sides, torch.zeros_like(scores))


@pytest.mark.parametrize(
    ("function", "dim", "widths", "listed", "packed", "options"),
    [
        (scan_scores, 64, (36, 20), False, False, {}),
        (scan_scores, 1024, (36, 20), False, False, {"direction": "i2t"}),
        (scan_scores, 64, (100, 36), True, False, {"direction": "i2t", "pooling": "lse"}),
        (scan_scores, 64, (150, 140), False, True, {"raw_feature_norm": "softmax"}),
        (maxsim_scores, 1024, (36, 20), False, False, {"direction": "i2t", "normalize": True}),
        (maxsim_scores, 1024, (50, 22), False, False, {}),
        (maxsim_scores, 128, (140, 32), False, True, {"pooling": "max"}),
        (maxsim_scores, 128, (36, 20), True, False, {}),
        (maxsim_scores, 128, (36, 20), False, True, {"pooling": "topk", "top": 5}),
        (maxsim_scores, 128, (36, 20), True, False, {"pooling": "lse", "clip_slope": 0.1}),
        (maxsim_scores, 128, (36, 20), True, False, {"context_pooling": "lse"}),
        (maxsim_scores, 1024, (140, 20), False, True, {"context_pooling": "lse", "normalize": True}),
    ],
)
def test_ragged_batches_compile_nothing(
    function: Any, dim: int, widths: tuple[int, int], listed: bool, packed: bool, options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever the lengths and the number of items: kept kernels, and what Triton itself would tell apart."""
    for module in (chunks, feature_gradients):
        monkeypatch.setattr(module, "multiply", lambda *_: None)
    monkeypatch.setattr(SumMax, "UNPLANNED_PRODUCTS", 10**8)  # which some of the batches have
    generator = torch.Generator().manual_seed(0)
    compiled = set[Any]()
    of_triton: dict[tuple[Any, ...], set[str]] = {}
    with recorded() as launches:
        for number, counts in enumerate(BATCHES):
            sides, lengths = [], []
            for count, width in zip(counts, widths, strict=True):
                sides.append(torch.zeros(count, width, dim, dtype=torch.bfloat16, requires_grad=True))
                lengths.append(torch.randint(1, width + 1, (count,), generator=generator))
                lengths[-1][-1] = width if packed else lengths[-1][-1]
            pairs = None
            if listed:  # which begin at a multiple of 16 bytes, or do not
                pairs = torch.zeros(3 + 18 * number, dtype=torch.int64)[number % 2 :][: 2 + 18 * number].view(-1, 2)
            step(function, sides, lengths, packed, pairs=pairs, **options)
            compiled = compiled or set(triton_launch._compiled)
            assert set(triton_launch._compiled) == compiled, f"batch {number}"
    for launch in launches:
        of_triton.setdefault((launch.name, launch.kind, launch.dtype), set()).add(launch.key)
    assert all(len(keys) == 1 for keys in of_triton.values()), of_triton.keys()
    assert len(of_triton) <= len(compiled)


def test_batches_of_one_layer_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their number and lengths."""
    monkeypatch.setattr(HeterogeneousTuning, "WORKSPACE_BYTES", 2**22)
    generator = torch.Generator().manual_seed(0)
    compiled = set[Any]()
    of_triton: dict[tuple[Any, ...], set[str]] = {}
    with recorded() as launches:
        for n_images, n_captions in BATCHES[:4]:
            sides, lengths = [], []
            for count, width in ((n_images, 36), (n_captions, 16 + n_images % 5)):
                sides.append(torch.zeros(count, width, 8, dtype=torch.bfloat16, requires_grad=True))
                lengths.append(torch.randint(1, width + 1, (count,), generator=generator))
            scores = heterogeneous_scores(*sides, *lengths, layers=make_layers(1, 8), backend="triton")
            torch.autograd.grad(scores, sides, torch.zeros_like(scores))
            compiled = compiled or set(triton_launch._compiled)
            assert set(triton_launch._compiled) == compiled, f"batch {n_images}"
    for launch in launches:
        of_triton.setdefault((launch.name, launch.kind, launch.dtype), set()).add(launch.key)
    assert of_triton and all(len(keys) == 1 for keys in of_triton.values()), of_triton.keys()


@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
def test_what_calls_share_suits_them_all(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever features, pairs and scores' gradients begin, and however far apart items lie.

    Of listed pairs gradients of three items are summed up in float16, those of two in float32.
    """
    for module in (chunks, feature_gradients):
        monkeypatch.setattr(module, "multiply", lambda *_: None)
    for name in ("QUERIES", "ITEMS", "LEAST_STEPS"):  # sums of two runs
        monkeypatch.setattr(SumMax, name, 1)
    monkeypatch.setattr(Attention, "SUM_BYTES", 4 * 34)
    far = torch.empty(2**30 + 18, dtype=torch.float16).as_strided((2, 1, 17), (2**30 + 1, 17, 1))
    memory = torch.zeros(60, dtype=torch.float16)
    sides = [memory[begin : begin + n * 17].view(n, 1, 17) for begin, n in ((0, 2), (1, 3))]
    listed = [torch.zeros(9, dtype=torch.int64)[begin : begin + 8].view(4, 2) for begin in (0, 1)]
    own = dict[int, set[str]]()
    with recorded() as launches, monkeypatch.context() as patch:
        recorder_of = triton_launch.compiled

        def compiled(*given: Any) -> Any:
            recorder, keys = recorder_of(*given), own.setdefault(len(own), set())

            def start(*arguments: Any) -> None:
                recorder(*arguments)
                keys.add(launches[-1].key)

            return start

        patch.setattr(triton_launch, "compiled", compiled)
        for given, pairs in product(permutations([*sides, far], 2), [None, *listed]):
            leaves = [side.requires_grad_() for side in given]
            scores = function(*leaves, normalize=True, pairs=pairs, backend="triton")
            grads = torch.zeros(9)[1 : 1 + scores.numel()].view(scores.shape)
            torch.autograd.grad(scores, leaves, grads)
    assert own and not (apart := [keys for keys in own.values() if len(keys) > 1]), apart
