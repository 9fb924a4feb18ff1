"""`pairwise_scores`: any scorer of pairs written in PyTorch operations, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from crossret_kernels.inputs.call import Features, Lengths, as_call, check_traceable
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import Array
from crossret_kernels.padded.chunked import WORKSPACE_BYTES, of_chunks, of_pairs, pair_bytes, split_evenly, widened

Scorer: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def pairwise_scores(
    regions: Features,
    words: Features,
    scorer: Scorer,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
    bytes_per_pair: int | None = None,
) -> Tensor:
    """Scores of images and captions by a scorer of your own (SGRAF, IMRAM, RCAR …), in blocks of bounded size.

    A block is scored again in the backward pass, so that its scores alone outlive it, in training too. Gradients are
    those of the whole: of regions and words, summed in float32 at least, and of all else that the scorer is made of,
    such as its parameters.

    Args:
        regions, words, region_lengths, word_lengths, region_mask, word_mask: as `scan_scores` takes them; their D may
            differ.
        scorer: called as ``scorer(regions (P, R, D), region_mask (P, R), words (P, W, D), word_mask (P, W))``, returns
            (P,): pair i is image i with caption i. Masks are bool, True where there is a row; rows elsewhere are zeros,
            of which the scorer's derivatives must be finite. Features come in the dtype and on the device they have.
            It is called once for each block and, for gradients, once more: it must make the same scores again, and
            change nothing. It may draw random numbers (dropout), which are drawn alike. A batch normalisation would
            count twice, and see other pairs in other blocks. R and W are the widths of padded features, of packed and
            listed ones at most the longest item's length. P may be 0, where there are no pairs to score.
        empty_score: what a pair scores of which an item has no rows, without a gradient to anything; may be infinite.
            The scorer gets such an item as one row of zeros. None: an empty item is an error.
        pairs: (P, 2) integers (image, caption): only these pairs are scored.
        candidates: (n_queries, K) integers: each item of one side against K items of the other. A list of all their
            pairs is made, 16 bytes each.
        query: whose candidates they are: "caption", which None means too, or "image".
        workspace_bytes: how much memory a block may take: it is as many pairs as `bytes_per_pair` fit in, one at least.
            It bounds a block's intermediates, not the features, scores and gradients of the call.
        bytes_per_pair: what one pair takes in the scorer and its backward pass, which you know best. None: an estimate
            for attention, in float32, or float64 of such features: three copies of the pair's padded rows,
            (R + W) · D each, and eight arrays R × W. What a scorer makes beyond that is not counted.

    Returns:
        Scores (n_images, n_captions); (P,) with `pairs`; (n_queries, K) with `candidates`. At least float32.
        Under autocast and `torch.func` the scorer runs as its operations do anywhere; `torch.func` keeps all blocks for
        the gradients, whose memory grows with the pairs.

    Raises:
        ValueError, TypeError: as `scan_scores`; a scorer that cannot be called or returns anything but P floating-point
            scores on the features' device; sizes that are no integers of at least 1. Packed or listed features inside
            torch.compile.
    """
    check_scorer(scorer, workspace_bytes, bytes_per_pair)
    sides = regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score
    call = as_call(sides, pairs, candidates, query, same_dim=False)
    check_traceable("pairwise_scores takes padded features", call.images, call.captions)
    dtypes = call.images.values.dtype, call.captions.values.dtype
    images, captions, listed = widened(call.images), widened(call.captions), call.listed
    size = max(1, workspace_bytes // (pair_bytes(images, captions) if bytes_per_pair is None else bytes_per_pair))

    def score_pairs(v: Tensor, v_mask: Tensor, e: Tensor, e_mask: Tensor) -> Tensor:
        return checked_scores(scorer(v.to(dtypes[0]), v_mask, e.to(dtypes[1]), e_mask), v)

    def score_rectangle(v: Tensor, v_mask: Tensor, e: Tensor, e_mask: Tensor) -> Tensor:
        n, m = len(v), len(e)
        image_tensors = (x[:, None].expand(n, m, *x.shape[1:]).flatten(0, 1) for x in (v, v_mask))
        caption_tensors = (x[None].expand(n, m, *x.shape[1:]).flatten(0, 1) for x in (e, e_mask))
        return score_pairs(*image_tensors, *caption_tensors).view(n, m)

    if listed is None and len(images) and len(captions):
        rows, columns = block_shape(images, captions, size)
        scores = of_chunks(split_evenly(images, rows), split_evenly(captions, columns), score_rectangle, draws=True)
    else:
        every = torch.empty(0, 2, dtype=torch.int64, device=images.values.device) if listed is None else listed
        (scores,) = of_pairs(images, captions, every, size, lambda *block: (score_pairs(*block),), draws=True)
        scores = scores if listed is not None else scores.view(len(images), len(captions))
    return call.as_results([scores])[0]


def block_shape(images: Ragged, captions: Ragged, size: int) -> tuple[int, int]:
    """Images and captions of a block of at most `size` pairs, about as many of either; of no empty side."""
    rows = min(len(images), isqrt(size))
    columns = min(len(captions), size // rows)
    return min(len(images), size // columns), columns


def check_scorer(scorer: Any, workspace_bytes: Any, bytes_per_pair: Any) -> None:
    """Raises TypeError or ValueError where a caller's scorer or sizes cannot be used."""
    if not callable(scorer):
        raise TypeError(f"scorer must be callable, not {type(scorer).__name__}")
    for name, size in (("workspace_bytes", workspace_bytes), ("bytes_per_pair", bytes_per_pair)):
        if size is None and name == "bytes_per_pair":
            continue
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
            raise TypeError(f"{name} must be an integer, not {type(size).__name__}")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")


def checked_scores(scores: Any, block: Tensor) -> Tensor:
    """Scores (P,) that a scorer returned; raises TypeError or ValueError unless a block's every row has one."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scorer must return a floating-point tensor, not {kind}")
    if scores.shape != block.shape[:1]:
        raise ValueError(f"scorer must return a score for each of {len(block)} pairs, got shape {tuple(scores.shape)}")
    if scores.device != block.device:
        raise ValueError(f"scorer returned scores on {scores.device} but regions are on {block.device}")
    return scores
