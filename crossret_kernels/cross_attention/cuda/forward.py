"""Scores of stacked cross attention by the CUDA kernels: part by part, each in one step of the native library."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.cuda.plan import Call, Part
from crossret_kernels.cross_attention.cuda.steps import attend


def scores(*arguments: Any) -> Tensor:
    """`crossret::scan_scores_cuda`: scores (n_images, n_captions), or (P,) of pairs, float32."""
    call = Call(arguments, gradients=False)
    out = torch.empty(call.shape, dtype=torch.float32, device=call.device)
    if out.numel() == 0:
        return out
    if not call.plan.filled:
        return out.fill_(call.empty_score)
    for of_contexts, of_queries in product(*call.plan.parts):
        sides = call.sides[0], of_contexts.numbers, call.sides[1], of_queries.numbers
        shared = *sides, *call.shared(of_contexts, of_queries, out)
        if call.pairs is None:
            first, second = call.in_order((of_contexts.first, of_queries.first))
            attend(out[first:, second:] if first or second else out, *shared, [])
            continue
        for places, own in pairs_of(call, of_contexts, of_queries):
            made = out if places is None else out.new_empty(len(own))
            attend(made, *shared, [own, own[:, 0].sort(stable=True).indices])
            if places is not None:
                out[places] = made
    return out


def pairs_of(call: Call, of_contexts: Part, of_queries: Part) -> Iterator[tuple[Tensor | None, Tensor]]:
    """Where the listed pairs of two parts stand, None for all, and their items, (pairs, 2) of the parts' items."""
    assert call.pairs is not None
    own = call.pairs if call.by_images else call.pairs.flip(1)
    if call.plan.shape == (of_contexts.n_items, of_queries.n_items):
        yield None, own.contiguous()
        return
    own = own - own.new_tensor([of_contexts.first, of_queries.first])
    inside = (own >= 0) & (own < own.new_tensor([of_contexts.n_items, of_queries.n_items]))
    places = inside.all(1).nonzero().squeeze(1)
    if places.size(0):
        yield places, own[places]
