"""Gradients of stacked cross attention by the CUDA kernels (docs/kernels.md §2): ∂L/∂S in two parts, then products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.cuda.forward import pairs_of
from crossret_kernels.cross_attention.cuda.plan import Call, Part
from crossret_kernels.cross_attention.cuda.steps import attention_gradients, finish_gradients, pack_rows


class Sums:
    """Gradients of a part of one side, summed up in float32.

    Attributes:
        own: whether of contexts (0) or queries (1).
        part, packed: its rows.
        total: (rows, D) the sums; None while there are none.
        of_rows: (shares, rows) of queries, what each gets of itself.
        of_grams: (shares, numbers) of contexts, by way of their Gram matrices.
    """

    def __init__(self, call: Call, own: int, part: Part) -> None:
        self.call, self.own, self.part = call, own, part
        self.packed = pack_rows(call.sides[own], part.numbers, call.options[0], call.wide)
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
        side = [out, *self.call.sides[self.own][1:]]
        numbers = self.part.grams[1] if self.part.grams else None
        finish_gradients(
            self.total, side, self.part.numbers, self.packed, self.call.options[0], self.of_rows, self.of_grams, numbers
        )


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_cuda_backward`: gradients of regions and words, empty where one is not wanted."""
    call, needed = Call(arguments[1:-2], gradients=True), arguments[-2:]
    grad_scores = arguments[0].float()
    wanted = call.in_order(needed)
    outs = [side[0].new_zeros(side[0].shape if want else 0) for side, want in zip(call.sides, wanted, strict=True)]
    if 0 not in call.shape and call.plan.filled and any(needed):
        # Where both sides come in parts, for one side after the other, so that sums stay in float32.
        if min(map(len, call.plan.parts)) > 1 and all(wanted):
            _add(call, grad_scores, outs[0], None)
            _add(call, grad_scores, None, outs[1])
        else:
            _add(call, grad_scores, *(out if want else None for out, want in zip(outs, wanted, strict=True)))
    of_images, of_captions = call.in_order((outs[0], outs[1]))
    return of_images, of_captions


def _add(call: Call, grad_scores: Tensor, of_contexts: Tensor | None, of_queries: Tensor | None) -> None:
    parts = call.plan.parts
    outs = of_contexts, of_queries
    outer = 0 if len(parts[1]) == 1 or (of_contexts is not None and len(parts[0]) > 1) else 1
    kept = Sums(call, 1 - outer, parts[1 - outer][0]) if len(parts[1 - outer]) == 1 else None
    for part in parts[outer]:
        own = Sums(call, outer, part)
        for other_part in parts[1 - outer]:
            other = kept or Sums(call, 1 - outer, other_part)
            contexts, queries = (own, other) if outer == 0 else (other, own)
            _add_parts(contexts, queries, grad_scores, of_contexts is not None, of_queries is not None)
        out = outs[outer]
        if out is not None:
            own.store(out)
    last = outs[1 - outer]
    if kept is not None and last is not None:
        kept.store(last)


def _add_parts(contexts: Sums, queries: Sums, grad_scores: Tensor, for_contexts: bool, for_queries: bool) -> None:
    call = contexts.call
    if call.pairs is None:
        first, second = call.in_order((contexts.part.first, queries.part.first))
        grad_scores = grad_scores[first:, second:]
    else:
        grad_scores = _of_all_pairs(call, contexts.part, queries.part, grad_scores)
    of_similarities, of_rows, of_grams = attention_gradients(
        grad_scores, contexts.packed, contexts.part.numbers[3], queries.packed,
        queries.part.numbers[3], *call.shared(contexts.part, queries.part, grad_scores), contexts.part.grams[1],
        contexts.part.n_numbers,
    )  # fmt: skip
    matrix = of_similarities[:, : contexts.packed[0].size(0)]
    if for_contexts:
        contexts.add(matrix.mT, queries.packed[0])
        contexts.of_grams = _with(contexts.of_grams, of_grams)
    if for_queries:
        queries.add(matrix, contexts.packed[0])
        queries.of_rows = _with(queries.of_rows, of_rows)


def _with(before: Tensor | None, more: Tensor) -> Tensor:
    """Shares of the parts so far and of another one: summed up, as memory may not grow with the number of parts."""
    return more if before is None else before.sum(0, keepdim=True).add_(more.sum(0, keepdim=True))


def _of_all_pairs(call: Call, of_contexts: Part, of_queries: Part, grad_scores: Tensor) -> Tensor:
    """Listed pairs' gradients as those of all pairs of two parts, in the order of images and captions."""
    dense = grad_scores.new_zeros(call.in_order((of_contexts.n_items, of_queries.n_items)))
    for places, own in pairs_of(call, of_contexts, of_queries):
        grads = grad_scores if places is None else grad_scores[places]
        dense.index_put_(call.in_order((own[:, 0], own[:, 1])), grads, accumulate=True)
    return dense


def _product(left: Tensor, right: Tensor) -> Tensor:
    """In float32."""
    if left.dtype is torch.float32 or left.is_cpu:  # where there is no product of halves with sums in float32
        return left.float() @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)
