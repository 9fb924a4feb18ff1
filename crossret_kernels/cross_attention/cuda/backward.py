"""Gradients of stacked cross attention by the CUDA kernels (docs/kernels.md §2): ∂L/∂S in two parts, then products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.cuda.forward import pairs_of
from crossret_kernels.cross_attention.cuda.library import attention_gradients, finish_gradients
from crossret_kernels.cross_attention.cuda.plan import CudaCall, CudaPart


class CudaSums:
    """Gradients of a part of one side, summed up in float32.

    Attributes:
        own: whether of contexts (0) or queries (1).
        part: its items.
        packed: its rows, behind them zeros up to a multiple of eight rows, and what is told of them.
        total: (rows, D) the sums, of contexts a multiple of eight rows; None while there are none.
        of_rows: (shares, rows) of queries, what each gets of itself.
        of_grams: (shares, numbers) of contexts, by way of their Gram matrices.
    """

    def __init__(self, call: CudaCall, own: int, part: CudaPart) -> None:
        self.call, self.own, self.part = call, own, part
        self.packed = call.pack(own, part)
        self.total: Tensor | None = None
        self.of_rows: Tensor | None = None
        self.of_grams: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Adds a product."""
        made = _product(left, right)
        self.total = made if self.total is None else self.total.add_(made)

    def store(self, out: Tensor) -> None:
        """As gradients of features."""
        if self.total is None:
            return
        finish_gradients(
            self.total[: self.part.n_rows], self.packed, out, *self.call.located(self.own), self.part.numbers,
            self.call.choices, self.of_rows, self.of_grams,
        )  # fmt: skip


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_cuda_backward`: gradients of regions and words, empty where one is not wanted."""
    grad_scores, needed = arguments[0].float(), arguments[-2:]
    call = CudaCall(arguments[3:-3], gradients=True, kept=arguments[1:3])
    wanted = call.in_order(needed)
    outs = [
        side.features.new_zeros(side.features.shape if want else 0)
        for side, want in zip(call.sides, wanted, strict=True)
    ]
    parts = call.parts() if any(needed) and grad_scores.numel() else ([], [])
    if parts[0]:
        # Where both sides come in parts, for one side after the other, so that sums stay in float32.
        if min(map(len, parts)) > 1 and all(wanted):
            _add(call, parts, grad_scores, (outs[0], None))
            _add(call, parts, grad_scores, (None, outs[1]))
        else:
            _add(call, parts, grad_scores, [out if want else None for out, want in zip(outs, wanted, strict=True)])
    of_images, of_captions = call.in_order((outs[0], outs[1]))
    return of_images, of_captions


def _add(
    call: CudaCall, parts: tuple[list[CudaPart], list[CudaPart]], grad_scores: Tensor, outs: Sequence[Tensor | None]
) -> None:
    """Adds up gradients of contexts and of queries, of those that have a place for them."""
    outer = 0 if len(parts[1]) == 1 or (outs[0] is not None and len(parts[0]) > 1) else 1
    once = CudaSums(call, 1 - outer, parts[1 - outer][0]) if len(parts[1 - outer]) == 1 else None
    for part in parts[outer]:
        own = CudaSums(call, outer, part)
        for other_part in parts[1 - outer]:
            other = once or CudaSums(call, 1 - outer, other_part)
            contexts, queries = (own, other) if outer == 0 else (other, own)
            _add_parts(contexts, queries, grad_scores, *(out is not None for out in outs))
        out = outs[outer]
        if out is not None:
            own.store(out)
    last = outs[1 - outer]
    if once is not None and last is not None:
        once.store(last)


def _add_parts(
    contexts: CudaSums, queries: CudaSums, grad_scores: Tensor, for_contexts: bool, for_queries: bool
) -> None:
    call, of_contexts, of_queries = contexts.call, contexts.part, queries.part
    if call.pairs is None:
        grad_scores = grad_scores if call.by_images else grad_scores.T
        grad_scores = grad_scores[of_contexts.first :, of_queries.first :]
    else:
        grad_scores = _of_all_pairs(call, of_contexts, of_queries, grad_scores)
    of_similarities, of_rows, of_grams = attention_gradients(
        grad_scores, contexts.packed, queries.packed, of_contexts.numbers, of_queries.numbers, of_contexts.jobs,
        of_queries.jobs, call.choices,
    )  # fmt: skip
    n_queries, pitch = of_similarities.shape
    if for_contexts:
        contexts.add(of_similarities.mT, queries.packed[:n_queries])
        contexts.of_grams = _with(contexts.of_grams, of_grams)
    if for_queries:
        if pitch > of_contexts.n_rows:  # NaN may lie there, and the contexts' zeros times NaN are NaN
            of_similarities[:, of_contexts.n_rows :].zero_()
        queries.add(of_similarities, contexts.packed[:pitch])
        queries.of_rows = _with(queries.of_rows, of_rows)


def _with(before: Tensor | None, more: Tensor) -> Tensor:
    """Shares of the parts so far and of another one: summed up, as memory may not grow with the number of parts."""
    return more if before is None else before.sum(0, keepdim=True).add_(more.sum(0, keepdim=True))


def _of_all_pairs(call: CudaCall, contexts: CudaPart, queries: CudaPart, grad_scores: Tensor) -> Tensor:
    """Listed pairs' gradients as those of all pairs of two parts, (contexts, queries)."""
    dense = grad_scores.new_zeros(contexts.n_items, queries.n_items)
    for places, own in pairs_of(call, contexts, queries):
        grads = grad_scores if places is None else grad_scores[places]
        dense.index_put_((own[:, 0], own[:, 1]), grads, accumulate=True)
    return dense


def _product(left: Tensor, right: Tensor) -> Tensor:
    """In float32."""
    if left.dtype is torch.float32 or left.is_cpu:  # where there is no product of halves with sums in float32
        return left.float() @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)
