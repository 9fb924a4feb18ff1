"""Scores of stacked cross attention by the CUDA kernels: sides are packed part by part, and attend to one another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.cuda.library import attend
from crossret_kernels.cross_attention.cuda.plan import CudaCall, CudaPart


def scores(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`crossret::scan_scores_cuda`: scores (n_images, n_captions), or (P,) of pairs, float32; and to `save` both sides
    packed, where gradients can be made of them.
    """
    call, save = CudaCall(arguments[:-1], gradients=False), arguments[-1]
    out = torch.empty(call.shape, dtype=torch.float32, device=call.device)
    contexts, queries = call.parts() if out.numel() else ([], [])
    if not contexts:
        out.fill_(call.empty_score)
    packed: tuple[Tensor, ...] = ()
    for of_contexts in contexts:
        packed_contexts = call.pack(0, of_contexts)
        for of_queries in queries:
            packed = packed_contexts, call.pack(1, of_queries)
            _score(call, out, packed, of_contexts, of_queries)
    if not (save and packed and call.packed is not torch.float16 and call.fits(gradients=True)):
        packed = out.new_empty(0), out.new_empty(0)
    return out, packed[0], packed[1]


def _score(call: CudaCall, out: Tensor, packed: tuple[Tensor, ...], contexts: CudaPart, queries: CudaPart) -> None:
    """Scores of two parts, to where those of the call are."""
    of_parts = contexts.numbers, queries.numbers, contexts.jobs, queries.jobs, call.choices
    if call.pairs is None:
        out = out if call.by_images else out.T
        if contexts.first or queries.first:
            out = out[contexts.first :, queries.first :]
        attend(out, *packed, *of_parts, None, None)
        return
    for places, own in pairs_of(call, contexts, queries):
        made = out if places is None else out.new_empty(len(own))
        attend(made, *packed, *of_parts, own, own[:, 0].sort(stable=True).indices)
        if places is not None:
            out[places] = made


def pairs_of(call: CudaCall, contexts: CudaPart, queries: CudaPart) -> list[tuple[Tensor | None, Tensor]]:
    """Where the listed pairs of two parts stand, None for all, and their items, (pairs, 2) of the parts' items; nothing
    where there are none.
    """
    assert call.pairs is not None
    own = call.pairs if call.by_images else call.pairs.flip(1)
    sizes = contexts.n_items, queries.n_items
    if sizes == call.n_items:
        return [(None, own.contiguous())]
    own = own - own.new_tensor([contexts.first, queries.first])
    places = ((own >= 0) & (own < own.new_tensor(sizes))).all(1).nonzero().squeeze(1)
    return [(places, own[places])] if places.size(0) else []
