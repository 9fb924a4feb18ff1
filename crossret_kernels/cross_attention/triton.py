"""Backend "triton" of stacked cross attention: what its kernels are compiled for and launched with; scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from crossret_kernels.cross_attention.options import CrossAttentionOptions
from crossret_kernels.cross_attention.tiling import CONTEXT_SEGMENTS, QUERY_SEGMENTS, Tiling, tiling, too_long
from crossret_kernels.cross_attention.triton_kernels import gram_tiles, scan_forward
from crossret_kernels.tile_plan import TilePlan
from crossret_kernels.triton_launch import Side, launch, precisions

GRAM_BYTES = 24 * 2**20
LARGEST_FREE_LOGIT = 20.0  # weights of exp(±20) squared keep their digits in float32, whatever the features' length
LARGEST_FREE_LSE = 40.0


@dataclass(frozen=True)
class Call:
    """One call, its sides as contexts and queries.

    Attributes:
        contexts, queries: the attended and the attending side.
        pairs: (P, 2) int64 (image, caption), contiguous on the device; None for all pairs.
        options: of the scores.
        context_norms, query_norms: of every row, float32.
    """

    contexts: Side
    queries: Side
    pairs: Tensor | None
    options: CrossAttentionOptions
    context_norms: Tensor
    query_norms: Tensor

    @classmethod
    def of(cls, *arguments: Any) -> Call:
        """From what the operation `crossret::scan_scores_triton` takes."""
        images, captions = Side.of(*arguments[:3]), Side.of(*arguments[3:6])
        pairs, options = arguments[6], CrossAttentionOptions(*arguments[7:14])
        contexts, queries = (images, captions) if options.direction == "t2i" else (captions, images)
        pairs = None if pairs is None else pairs.contiguous()
        return cls(contexts, queries, pairs, options, contexts.norms(), queries.norms())

    @property
    def context_column(self) -> int:
        """Of a pair."""
        return 0 if self.options.direction == "t2i" else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the scores."""
        if self.pairs is not None:
            return (self.pairs.size(0),)
        n = self.contexts.n_items, self.queries.n_items
        return n if self.context_column == 0 else n[::-1]

    @property
    def score_strides(self) -> tuple[int, int]:
        """From a context item's scores to the next one's, and from a query item's; of all pairs."""
        return (self.queries.n_items, 1) if self.context_column == 0 else (1, self.contexts.n_items)

    @property
    def numbers(self) -> tuple[float, float, float]:
        return self.options.clip_slope, self.options.lambda_softmax, self.options.lambda_lse

    def tiling(self, kernel: Literal["forward", "backward"]) -> Tiling:
        return tiling(self.contexts.ragged, self.queries.ragged, self.pairs is not None, kernel)

    @property
    def modes(self) -> dict[str, Any]:
        """What options make of every kernel over pairs."""
        options = self.options
        free = options.norm != "none" and abs(options.lambda_softmax) <= LARGEST_FREE_LOGIT
        return {
            "CONTEXT_COLUMN": self.context_column,
            "WHOLE": self.pairs is not None,
            "NORMALIZE": options.normalize,
            "CLIPS": options.clips,
            "NORM": options.norm,
            "SHIFTED": not free,
            "POOLING": options.pooling,
        }

    def constants(self, tile: Tiling) -> dict[str, Any]:
        """What the kernels over tiles of attention are compiled for."""
        main, fine = precisions(self.contexts.features.dtype)
        return {
            **self.modes,
            "POOL_SHIFTED": self.options.lambda_lse > LARGEST_FREE_LSE,
            "M": tile.m,
            "N": tile.n,
            "K": tile.k,
            "CONTEXT_ITEMS": CONTEXT_SEGMENTS,
            "QUERY_ITEMS": QUERY_SEGMENTS,
            "EVEN": self.contexts.dim % tile.k == 0,
            "MAIN": main,
            "FINE": fine,
            **tile.launch,
        }

    def sides(self, context_plan: TilePlan | None = None, query_plan: TilePlan | None = None) -> tuple[Any, ...]:
        """Both sides as these kernels take them; without plans a tile holds one item."""
        return (
            *self.contexts.arguments(self.context_norms, context_plan),
            *self.queries.arguments(self.query_norms, query_plan),
        )


def scores(*arguments: Any) -> Tensor:
    """`crossret::scan_scores_triton`: scores (n_images, n_captions), or (P,) of pairs, float32."""
    call = Call.of(*arguments)
    contexts, queries = call.contexts, call.queries
    out = torch.empty(call.shape, dtype=torch.float32, device=contexts.features.device)
    if not out.numel():
        return out
    if too_long(contexts.ragged, queries.ragged):
        from crossret_kernels.cross_attention.triton_long import store_scores

        store_scores(call, out)
        return out
    tile = call.tiling("forward")
    if call.pairs is not None:
        launch(scan_forward, (out.numel(),),
            *call.sides(), call.pairs, call.context_norms, out, 0, 0, 0, 0, 0, contexts.dim, *call.numbers,
            **call.constants(tile),
        )  # fmt: skip
        return out
    context_plan, query_plan = contexts.tiles(tile.m, CONTEXT_SEGMENTS), queries.tiles(tile.n, QUERY_SEGMENTS)
    constants = call.constants(tile)
    for tiles, grams in gram_runs(call, context_plan, tile, range(context_plan.tiles), GRAM_BYTES // (4 * tile.m**2)):
        launch(scan_forward, (len(tiles) * query_plan.tiles,),
            *call.sides(context_plan, query_plan), call.context_norms, grams, out, *call.score_strides,
            tiles.start, len(tiles), query_plan.tiles, contexts.dim, *call.numbers, **constants,
        )  # fmt: skip
    return out


def gram_runs(call: Call, plan: TilePlan, tile: Tiling, tiles: range, most: int) -> Iterator[tuple[range, Tensor]]:
    """These tiles of contexts in runs of at most so many, with their Gram matrices (…, M, M)."""
    contexts = call.contexts
    most = min(len(tiles), max(1, most))
    grams = torch.empty(most, tile.m, tile.m, dtype=torch.float32, device=plan.rows.device)
    main, _ = precisions(contexts.features.dtype)
    for first in range(0, len(tiles), most):
        run = tiles[first : first + most]
        launch(gram_tiles, (len(run),),
            contexts.features, call.context_norms, plan.rows, plan.owners, grams, run.start, *contexts.strides,
            contexts.dim, NORMALIZE=call.options.normalize, M=tile.m, K=tile.k, EVEN=contexts.dim % tile.k == 0,
            MAIN=main, **tile.launch,
        )  # fmt: skip
        yield run, grams


def gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`crossret::scan_scores_triton_backward`."""
    from crossret_kernels.cross_attention.triton_gradients import image_and_caption_gradients

    return image_and_caption_gradients(*arguments)
