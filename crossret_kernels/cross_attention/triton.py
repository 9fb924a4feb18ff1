"""Backend "triton" of stacked cross attention: launches of its kernels, with bounded workspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.cross_attention.triton_kernels import gram_tiles, scan_forward
from crossret_kernels.tile_plan import TilePlan
from crossret_kernels.triton_launch import Side, precisions, slots_for

GRAM_BYTES = 48 * 2**20
LARGEST_FREE_LOGIT = 20.0  # weights of exp(±20) squared keep their digits in float32, whatever the features' length
LARGEST_FREE_LSE = 40.0


@dataclass(frozen=True)
class Tiling:
    """A kernel's tile: M slots of contexts by N of queries, D in steps of K; how Triton runs it."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def tiling(longest_context: int, longest_query: int, dtype: torch.dtype, whole: bool) -> Tiling:
    """The tile for items of these lengths; `whole` for listed pairs, which have a tile each."""
    usual = (16, 16) if whole else (128, 64)
    m, n = slots_for(longest_context, usual[0]), slots_for(longest_query, usual[1])
    k = 32 if dtype == torch.float32 else 64
    return Tiling(m, n, k, 8 if m * n >= 128 * 64 else 4, 3)


@dataclass(frozen=True)
class Call:
    """One call, its sides as contexts and queries.

    Attributes:
        contexts, queries: the attended and the attending side.
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        options: of the scores.
    """

    contexts: Side
    queries: Side
    pairs: Tensor | None
    options: CrossAttentionOptions

    @classmethod
    def of(cls, *arguments: Any) -> Call:
        """From what the operation `crossret::scan_scores_triton` takes."""
        images, captions = Side.of(*arguments[:3]), Side.of(*arguments[3:6])
        pairs, options = arguments[6], CrossAttentionOptions(*arguments[7:14])
        sides = (images, captions) if options.direction == "t2i" else (captions, images)
        return cls(*sides, None if pairs is None else pairs.contiguous(), options)

    @property
    def context_column(self) -> int:
        return 0 if self.options.direction == "t2i" else 1

    def tiling(self) -> Tiling:
        longest = self.contexts.table.longest, self.queries.table.longest
        return tiling(*longest, self.contexts.features.dtype, self.pairs is not None)

    def constants(self, tile: Tiling) -> dict[str, Any]:
        """What the kernels are compiled for."""
        options = self.options
        main, fine = precisions(self.contexts.features.dtype)
        free = options.norm != "none" and abs(options.lambda_softmax) <= LARGEST_FREE_LOGIT
        return {
            "NORMALIZE": options.normalize,
            "CLIPS": options.clips,
            "NORM": options.norm,
            "SHIFTED": not free,
            "POOLING": options.pooling,
            "POOL_SHIFTED": options.lambda_lse > LARGEST_FREE_LSE,
            "CONTEXT_COLUMN": self.context_column,
            "WHOLE": self.pairs is not None,
            "M": tile.m,
            "N": tile.n,
            "K": tile.k,
            "EVEN": self.contexts.dim % tile.k == 0,
            "MAIN": main,
            "FINE": fine,
        }


def scores(*arguments: Any) -> Tensor:
    """`crossret::scan_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32."""
    call = Call.of(*arguments)
    contexts, queries, options = call.contexts, call.queries, call.options
    device = contexts.features.device
    images, captions = (contexts, queries) if call.context_column == 0 else (queries, contexts)
    shape = (images.n_items, captions.n_items) if call.pairs is None else (len(call.pairs),)
    out = torch.empty(shape, dtype=torch.float32, device=device)
    if not out.numel():
        return out
    tile = call.tiling()
    constants = call.constants(tile)
    numbers = (options.clip_slope, options.lambda_softmax, options.lambda_lse)
    norms = contexts.norms(), queries.norms()
    launch = {"num_warps": tile.warps, "num_stages": tile.stages}
    if call.pairs is not None:
        scan_forward[(len(call.pairs),)](
            *side_arguments(contexts, norms[0], None), *side_arguments(queries, norms[1], None),
            call.pairs, norms[0], out, 0, 0, 0, 0, 0, contexts.dim, *numbers,
            **constants, CONTEXT_ITEMS=16, QUERY_ITEMS=16, **launch,
        )  # fmt: skip
        return out
    context_plan, query_plan = contexts.tiles(tile.m), queries.tiles(tile.n)
    strides = (captions.n_items, 1) if call.context_column == 0 else (1, captions.n_items)
    for first, count, grams in gram_runs(call, context_plan, norms[0], tile):
        scan_forward[(count * query_plan.tiles,)](
            *side_arguments(contexts, norms[0], context_plan), *side_arguments(queries, norms[1], query_plan),
            norms[0], grams, out, *strides, first, count, query_plan.tiles, contexts.dim, *numbers,
            **constants, CONTEXT_ITEMS=context_plan.segments, QUERY_ITEMS=query_plan.segments, **launch,
        )  # fmt: skip
    return out


def side_arguments(side: Side, norms: Tensor, plan: TilePlan | None) -> tuple[Any, ...]:
    """One side as the kernels take it; without a plan each tile holds one item."""
    table = side.table
    tables = (table.lengths,) * 4 if plan is None else (plan.rows, plan.owners, plan.items, plan.lengths)
    return (side.features, norms, *tables, table.first_rows, table.lengths, *side.strides)


def gram_runs(call: Call, plan: TilePlan, norms: Tensor, tile: Tiling) -> Any:
    """Runs of context tiles, (first, how many, their Gram matrices), of bounded size."""
    contexts, constants = call.contexts, call.constants(tile)
    most = max(1, GRAM_BYTES // (4 * tile.m**2))
    grams = torch.empty(min(most, plan.tiles), tile.m, tile.m, dtype=torch.float32, device=norms.device)
    for first in range(0, plan.tiles, most):
        count = min(most, plan.tiles - first)
        gram_tiles[(count,)](
            contexts.features, norms, plan.rows, plan.owners, grams, first, *contexts.strides, contexts.dim,
            NORMALIZE=call.options.normalize, M=tile.m, K=tile.k, EVEN=constants["EVEN"], MAIN=constants["MAIN"],
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        yield first, count, grams
