"""`scan_attend_scores`: any score of what `scan_attend` makes of pairs, over all of them in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from typing_extensions import Unpack

from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.cross_attention.scan_attend import ScanAttended, attend
from crossret_kernels.inputs.call import Features, Lengths, as_call, check_traceable
from crossret_kernels.inputs.options import DIRECTIONS, checked, choose
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array, checkable
from crossret_kernels.padded.arithmetic import safe_normalize
from crossret_kernels.padded.chunked import WORKSPACE_BYTES, recomputed, split_evenly, widened
from crossret_kernels.padded.forms import gather_items, split_items
from crossret_kernels.pairwise.op import block_shape, check_scorer, checked_scores

AttendedScorer: TypeAlias = Callable[[ScanAttended, Tensor, Tensor, Tensor], Tensor]
_ARRAYS = 16  # arrays of the attended vectors' size that a scorer and its backward pass hold at once


def scan_attend_scores(
    regions: Features,
    words: Features,
    scorer: AttendedScorer,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    options: ScanOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
    bytes_per_pair: int | None = None,
    backend: str | None = None,
    **fields: Unpack[ScanFields],
) -> Tensor:
    """Scores of images and captions by a scorer of your own of what their queries attend to, in bounded memory.

    Attended vectors are made block by block, and again in the backward pass, so that scores alone outlive a block.
    SGRAF, IMRAM and RCAR are such scorers. Gradients are those of `pairwise_scores`.

    Args:
        scorer: called as ``scorer(attended, queries (P, Q, D), query_mask (P, Q), pairs (P, 2))`` of a block of pairs,
            returns (P,). ``attended`` is the `ScanAttended` of these pairs. Queries (words for "t2i", regions for
            "i2t") are unit vectors where they are to be normalised, and zeros where the mask, which is bool, is False.
            ``pairs`` are int64 (image, caption), for vectors of items that you hold. What `pairwise_scores` asks of a
            scorer holds here too.
        workspace_bytes: how much memory a block may take: it is as many pairs as `bytes_per_pair` fit in, one at least.
        bytes_per_pair: what one pair takes in the scorer and its backward pass, which you know best. None: an estimate
            in float32, or float64 of such features: sixteen arrays Q · D and four Q · C.
        backend: as in `scan_attend`.
        all others: as in `scan_scores`; pairs may be all, listed or candidates. An empty item has one query of zeros.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. At least float32.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `scan_attend` and `pairwise_scores`.
    """
    check_scorer(scorer, workspace_bytes, bytes_per_pair)
    options = checked(ScanOptions, options, fields)
    choose("direction of scan_attend_scores", options.direction, DIRECTIONS)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    call = as_call(sides, pairs, candidates, query, options.direction)
    check_traceable("scan_attend_scores takes padded features", call.images, call.captions)
    attending = int(options.direction == "t2i")
    dtypes = call.images.values.dtype, call.captions.values.dtype
    images, captions, listed = widened(call.images), widened(call.captions), call.listed
    size = max(
        1, workspace_bytes // (_pair_bytes(images, captions, options) if bytes_per_pair is None else bytes_per_pair)
    )

    def scores(images: Ragged, captions: Ragged, pairs: Tensor, first: tuple[int, int] = (0, 0)) -> Tensor:
        """Scores (P,) of pairs of these items, the first of which have these numbers in the call."""

        def score_block(v: Tensor, e: Tensor, pairs: Tensor) -> Tensor:
            block = images.with_values(v.to(dtypes[0])), captions.with_values(e.to(dtypes[1]))
            arguments = *block, None, None, None, None, empty_score
            attended = ScanAttended(*attend("scan_attend", arguments, options, pairs, None, None, backend))
            side = block[attending]
            queries, mask = gather_items(side, pairs[:, attending], side.width)
            queries = safe_normalize(queries) if options.normalize else queries
            return checked_scores(scorer(attended, queries, mask, pairs + pairs.new_tensor(first)), pairs)

        return recomputed(score_block, images.values, captions.values, pairs, draws=True)

    if listed is None and len(images) and len(captions):
        height, width = block_shape(images, captions, size)
        rows = []
        for i, image_block in enumerate(_cut(images, height)):
            row = []
            for c, caption_block in enumerate(_cut(captions, width)):
                numbers = (torch.arange(len(x), device=images.values.device) for x in (image_block, caption_block))
                block = scores(image_block, caption_block, torch.cartesian_prod(*numbers), (i * height, c * width))
                row.append(block.view(len(image_block), len(caption_block)))
            rows.append(torch.cat(row, 1))
        result = torch.cat(rows)
    else:
        every = torch.empty(0, 2, dtype=torch.int64, device=images.values.device) if listed is None else listed
        result = torch.cat([scores(images, captions, chunk) for chunk in every.split(size)])
        result = result if listed is not None else result.view(len(images), len(captions))
    return call.as_results([result])[0]


def _cut(side: Ragged, size: int) -> list[Ragged]:
    """So many successive items at a time, at the width of their longest, as far as lengths may be looked at."""
    if side.by_width or not checkable():
        return split_evenly(side, size)
    groups = side.extents.split(size)
    return split_items(side, [len(group) for group in groups], [int(group.max()) for group in groups])


def _pair_bytes(images: Ragged, captions: Ragged, options: ScanOptions) -> int:
    queries, contexts = (captions, images) if options.direction == "t2i" else (images, captions)
    numbers = queries.width * (_ARRAYS * queries.values.size(-1) + 4 * contexts.width)
    return torch.promote_types(queries.values.dtype, torch.float32).itemsize * numbers
