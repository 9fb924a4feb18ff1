"""A program for test_memory.py: scores tensors that end or begin where no memory may be touched; a stray read kills it.

``python -m tests.kernels.cpu.guarded_memory CASE…`` compares every operation, dtype and instruction set with the same
call on ordinary tensors, and prints how many calls agreed. A CASE is a placement, for normalised features with
"normalize" behind it. "overrun" and "underrun" read one byte outside instead, in a process of their own, whose end is
printed.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.backends import NATIVE_MISSING
from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.maxsim.options import MaxSimOptions
from tests.kernels.tolerance import ISAS

PAGE = mmap.PAGESIZE
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DIMS = (1, 3, 17, 33, 100, 259)
REGION_LENGTHS, WORD_LENGTHS = (5, 1, 13), (3, 7, 1, 17)
PADDING = 3  # rows behind the last item
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("scan_scores", {"direction": direction, "raw_feature_norm": norm, "pooling": pooling})
      for direction in ("t2i", "i2t")
      for norm, pooling in (("clipped_l2norm", "lse"), ("l1norm", "avg"), ("softmax", "max"), ("no_norm", "sum"))),
    ("scan_scores", {"direction": "t2i", "relevance": "projection", "focal": True}),
    ("scan_scores", {"direction": "i2t", "raw_feature_norm": "minmax", "threshold": 0.0}),
    *(("maxsim_scores", {"direction": direction, "pooling": pooling})
      for direction in ("t2i", "i2t") for pooling in ("sum", "max")),
]  # fmt: skip
KINDS: dict[str, Any] = {"scan_scores": ScanOptions, "maxsim_scores": MaxSimOptions}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 1, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Guarded:
    """Tensors on pages of their own, between pages that may not be touched."""

    def __init__(self, at_start: bool) -> None:
        self._at_start = at_start
        self._mappings: list[tuple[int, int]] = []

    def copy(self, tensor: Tensor, beyond: int = 0) -> Tensor:
        """The tensor against a guard page, longer by `beyond` rows that lie on that page."""
        dense = tensor.contiguous()
        rows = dense.size(0)
        row_bytes = dense.nbytes // max(rows, 1)
        pages = -(-max(dense.nbytes, 1) // PAGE)
        behind = 1 + -(-beyond * row_bytes // PAGE)
        size = (1 + pages + behind) * PAGE
        base = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value)
        self._mappings.append((base, size))
        for first, count in ((0, 1), (1 + pages, behind)):
            assert libc.mprotect(base + first * PAGE, count * PAGE, 0) == 0
        start = base + PAGE if self._at_start else base + (1 + pages) * PAGE - dense.nbytes
        buffer = (ctypes.c_char * (dense.nbytes + beyond * row_bytes)).from_address(start)
        placed = torch.frombuffer(buffer, dtype=dense.dtype).view(rows + beyond, *dense.shape[1:])
        placed[:rows] = dense
        return placed

    def free(self) -> None:
        for base, size in self._mappings:
            libc.munmap(base, size)


@contextmanager
def guarded(placement: str) -> Iterator[Guarded]:
    memory = Guarded(at_start=placement in ("start", "underrun"))
    yield memory
    memory.free()


def features(lengths: tuple[int, ...], dim: int, dtype: torch.dtype, placement: str, seed: int) -> Tensor:
    """Packed rows; for "strided" the last columns of wider ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), dim + (3 if placement == "strided" else 0), generator=generator).to(dtype)


def offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)])


def compare(placement: str, normalize: bool, dim: int, dtype: torch.dtype, pairs: Tensor | None) -> int:
    """Every operation on one batch; returns how many calls agreed with ordinary memory."""
    sides = [
        features(lengths, dim, dtype, placement, seed) for seed, lengths in enumerate((REGION_LENGTHS, WORD_LENGTHS))
    ]
    plain: list[Tensor | None] = []
    fenced: list[Tensor | None] = []
    agreed = 0
    with guarded(placement) as memory:
        for side, lengths in zip(sides, (REGION_LENGTHS, WORD_LENGTHS), strict=True):
            beyond = PADDING if placement == "padding" else 0
            padded = torch.cat([side, side.new_zeros(beyond, side.size(1))])
            for target, values in ((plain, padded), (fenced, memory.copy(side, beyond))):
                target.append(values[:, values.size(1) - dim :])
            plain.extend((offsets(lengths), None, None))
            fenced.extend((memory.copy(offsets(lengths)), None, None))
        plain.append(pairs)
        fenced.append(None if pairs is None else memory.copy(pairs))
        shape = (len(REGION_LENGTHS), len(WORD_LENGTHS)) if pairs is None else (len(pairs),)
        grads = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        fenced_grads = memory.copy(grads)
        for (name, options), isa in itertools.product(OPTIONS, ISAS):
            torch.ops.crossret.select_cpu_isa(isa)
            forward, backward = (getattr(torch.ops.crossret, name + suffix) for suffix in ("", "_backward"))
            others = (None, False, *KINDS[name](**options, normalize=normalize).codes)
            saves = (True,) if name == "maxsim_scores" else ()  # the best contexts, for gradients
            found, expected = (forward(*given, *others, *saves) for given in (fenced, plain))
            kept, expected_kept = (made[1:] if saves else () for made in (found, expected))
            assert torch.equal(found[0], expected[0])
            ours = backward(fenced_grads, *kept, *fenced, *others, *saves, True, True)
            theirs = backward(grads, *expected_kept, *plain, *others, *saves, True, True)
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
            agreed += 2
            if name == "scan_scores":
                both, gradients = torch.ops.crossret.scan_both, torch.ops.crossret.scan_both_backward
                own = (*others, 4.0)
                ours = both(*fenced, *own), *gradients(fenced_grads, *fenced, *own, True, True)
                theirs = both(*plain, *own), *gradients(grads, *plain, *own, True, True)
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
                agreed += 1
            if name == "scan_scores" and pairs is not None:
                places = (18, 13) if options["direction"] == "t2i" else (13, 18)
                shapes = (len(pairs),), (len(pairs), places[0], dim), (len(pairs), *places), (len(pairs), places[0])
                given = [torch.randn(shape, generator=torch.Generator().manual_seed(3)) for shape in shapes]
                attend, gradients = torch.ops.crossret.scan_attend, torch.ops.crossret.scan_attend_backward
                own = (*others, *places, True)
                ours = *attend(*fenced, *own), *gradients(*map(memory.copy, given), *fenced, *own, True, True)
                theirs = *attend(*plain, *own), *gradients(*given, *plain, *own, True, True)
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
                agreed += 2
            if name == "maxsim_scores":
                argmax = torch.ops.crossret.maxsim_argmax
                made = zip(argmax(*fenced, *others, 20), argmax(*plain, *others, 20), strict=True)
                assert all(torch.equal(ours, theirs) for ours, theirs in made)
                both, gradients = torch.ops.crossret.maxsim_both, torch.ops.crossret.maxsim_both_backward
                soft = MaxSimOptions(**options, normalize=normalize, context_pooling="lse", clip_slope=0.1)
                for own in (others, (None, False, *soft.codes)):
                    ours = *both(*fenced, *own), *gradients(fenced_grads, fenced_grads, *fenced, *own, True, True)
                    theirs = *both(*plain, *own), *gradients(grads, grads, *plain, *own, True, True)
                    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
                agreed += 2
        del fenced, fenced_grads
    return agreed


def compare_layered(placement: str, dim: int) -> int:
    """Heterogeneous attention of one layer, by one head and by several, of full items and of others."""
    agreed = 0
    for heads, local, bfloat16, isa in itertools.product((1, 3), (True, False), (True, False), ISAS):
        torch.ops.crossret.select_cpu_isa(isa)
        generator, size = torch.Generator().manual_seed(heads), dim * heads
        given = []
        for n, rows in ((2, 4), (3, 7)):
            shapes = (heads, dim), (heads, dim), (heads, size), (heads,), (heads + 1, size)
            given += [torch.randn(n, rows, *shape, generator=generator) for shape in shapes]
            given.append(torch.arange(n) % rows + rows - 2)
        given += [torch.randn(size, generator=generator) for _ in range(2)]
        options, grad = (1.0, local, 0, 9.0, 1, 6.0, bfloat16), torch.randn(2, 3, generator=generator)
        found = []
        with guarded(placement) as memory:
            for copy in (memory.copy, torch.clone):
                arguments = *map(copy, given), *options
                gradients = torch.ops.crossret.heterogeneous_attention_backward(copy(grad), *arguments, *[True] * 12)
                found.append((torch.ops.crossret.heterogeneous_attention(*arguments), *gradients))
            torch.testing.assert_close(*found, rtol=0, atol=0)
            agreed += 2
            del arguments
    return agreed


def compare_layer(placement: str, dim: int) -> int:
    """A layer's own operations: attention within items, and linear layers of both kinds of factors."""
    agreed, operations = 0, torch.ops.crossret
    for isa, heads, rows in itertools.product(ISAS, (1, 3), (1, 2, 17)):
        operations.select_cpu_isa(isa)
        generator, out = torch.Generator().manual_seed(rows), dim * heads
        shapes = (2, rows, 3 * out), (2, rows, out), (2, rows, dim), (out, dim), (out,)
        given = [torch.randn(shape, generator=generator) for shape in shapes]
        found: list[list[Tensor]] = []
        with guarded(placement) as memory:
            for copy in (memory.copy, torch.clone):
                projected, grad, *layer = map(copy, given)
                attention = projected, torch.arange(rows).expand(2, -1) < rows - rows // 3, heads, 0.5
                made = [operations.self_attention(*attention), operations.self_attention_backward(grad, *attention)]
                for bfloat16 in (False, True):
                    made += [operations.linear(*layer, bfloat16)]
                    made += operations.linear_backward(grad, *layer, bfloat16, True, True, True)
                found.append(made)
            torch.testing.assert_close(*found, rtol=0, atol=0)
            agreed += len(made)
            del projected, grad, layer, attention
    return agreed


def read_outside(placement: str) -> None:
    with guarded(placement) as memory:
        tensor = memory.copy(torch.ones(3))
        address = tensor.data_ptr() - 1 if placement == "underrun" else tensor.data_ptr() + tensor.nbytes
        ctypes.string_at(address, 1)


def agreements(placement: str, normalize: bool) -> int:
    pairs = torch.tensor([[2, 1], [0, 3], [0, 3], [1, 2], [2, 3]])
    agreed = sum(
        compare(placement, normalize, dim, dtype, selected)
        for dim, dtype, selected in itertools.product(DIMS, DTYPES, (None, pairs))
    )
    if not normalize and placement != "padding":
        agreed += sum(compare_layered(placement, dim) + compare_layer(placement, dim) for dim in DIMS)
    return agreed


def main(*cases: str) -> None:
    assert NATIVE_MISSING is None, NATIVE_MISSING
    for case in cases:
        placement, *options = case.split()
        if placement not in ("overrun", "underrun"):
            print(case, agreements(placement, options == ["normalize"]), flush=True)
            continue
        if os.fork() == 0:
            read_outside(placement)
            os._exit(0)
        print(case, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
