"""The "torch" backend's driver: a pairwise score in plain PyTorch operations, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from crossret_kernels.inputs.blocks import bounded_runs
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.inputs.tensors import checkable
from crossret_kernels.operations import needs_gradient
from crossret_kernels.padded.arithmetic import has_float64, safe_sqrt, scaled, vector_length
from crossret_kernels.padded.forms import gather_items, pad_items, split_items
from crossret_kernels.torch_internals import recomputes

WORKSPACE_BYTES = 32 * 2**20
_ARRAYS_PER_CELL = 8  # similarity-sized arrays alive at once inside a scorer
Result = TypeVar("Result")


@dataclass(frozen=True)
class Block:
    """Some images and captions, padded, with their similarities (…, R, W); "…" is (images, captions), or (pairs,).

    ``region_owner`` and ``word_owner`` name the items' dimension in einsum notation: "i" and "c", or both "p".
    """

    similarities: Tensor
    regions: Tensor
    words: Tensor
    region_mask: Tensor
    word_mask: Tensor
    region_owner: str
    word_owner: str

    def as_attention(self, direction: str) -> AttentionBlock:
        """The block seen from the attending side: words over regions (t2i) or regions over words (i2t)."""
        region_mask = self._lift(self.region_mask, self.region_owner)
        word_mask = self._lift(self.word_mask, self.word_owner)
        if direction == "t2i":
            queries, owner = self._lift(self.words, self.word_owner), self.region_owner
            return AttentionBlock(self.similarities, self.regions, queries, region_mask, word_mask, owner, self._lead)
        queries, owner = self._lift(self.regions, self.region_owner), self.word_owner
        return AttentionBlock(self.similarities.mT, self.words, queries, word_mask, region_mask, owner, self._lead)

    @property
    def _lead(self) -> str:
        return "p" if self.region_owner == "p" else "ic"

    def _lift(self, values: Tensor, owner: str) -> Tensor:
        """Adds the dimensions of "…" that the item does not have, so that it broadcasts against the similarities."""
        for position, letter in enumerate(self._lead):
            if letter != owner:
                values = values.unsqueeze(position)
        return values


@dataclass(frozen=True)
class AttentionBlock:
    """Queries attending to contexts.

    Similarities (…, C, Q), contexts (items, C, D), queries (…, Q, D), masks (…, C) and (…, Q).
    """

    similarities: Tensor
    contexts: Tensor
    queries: Tensor
    context_mask: Tensor
    query_mask: Tensor
    owner: str
    lead: str

    def attended_norms(self, weights: Tensor) -> Tensor:
        """‖Σ_c p_c c‖ of every query (…, Q) for weights p (…, C, Q).

        Where each context meets many queries, by the Gram form and without the attended vectors; in float64, as where
        contexts nearly cancel the sum is far smaller than its terms and float32 loses it. From the attended vectors in
        a pair of its own, whose Gram matrix costs more, and on devices without float64.
        """
        if self.lead == "p":
            return vector_length(weights.mT @ self.contexts)
        if not has_float64(weights.device):
            return self._attended_norms_by_columns(weights)
        contexts, scale = scaled(self.contexts.double(), (-2, -1))
        p = weights.double()
        product = torch.einsum(f"{self.owner}xy,{self.lead}yq->{self.lead}xq", contexts @ contexts.mT, p)
        norms = safe_sqrt((p * product).sum(-2).clamp(min=0)) / self._of_owners(scale.squeeze(-1))
        return norms.to(weights.dtype)

    def _attended_norms_by_columns(self, weights: Tensor) -> Tensor:
        """From as many columns of the attended vectors at a time as half the workspace holds; none are kept."""
        contexts, scale = scaled(self.contexts, (-2, -1))
        rows = weights.numel() // weights.size(-2)
        size = max(1, WORKSPACE_BYTES // (2 * weights.itemsize * rows))

        def squares(p: Tensor, columns: Tensor) -> Tensor:
            return (p.mT @ self._of_owners(columns)).square().sum(-1)

        parts = [recomputed(squares, weights, columns) for columns in contexts.split(size, -1)]
        return safe_sqrt(torch.stack(parts).sum(0)) / self._of_owners(scale.squeeze(-1))

    def _of_owners(self, values: Tensor) -> Tensor:
        """Values (items, …) of context items, to broadcast against those of "…"."""
        return values.unsqueeze(1 - self.lead.index(self.owner))


def chunked_scores(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor | None,
    scorer: Callable[[Block], Tensor],
    transform: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Scores (n_images, n_captions), or (P,) for pairs, by calling `scorer` on blocks of bounded size.

    `transform` is applied to the features of a block before anything else. Each block is recomputed in the backward
    pass, so no block's intermediates outlive it; under `torch.func`, which cannot recompute, they do.
    """
    if pairs is not None:
        return chunked_pairs(regions, words, pairs, lambda block: (scorer(block),), transform)[0]
    regions, words = widened(regions), widened(words)
    if not len(regions) or not len(words):
        return _no_scores(regions, words, transform)
    image_chunks = split(regions, _chunk_rows(regions, words))
    caption_chunks = split(words, _chunk_rows(words, regions))

    def cross(v: Tensor, v_mask: Tensor, e: Tensor, e_mask: Tensor) -> Tensor:
        v, e = _prepare(v, transform), _prepare(e, transform)
        s = (v.flatten(0, 1) @ e.flatten(0, 1).T).view(*v.shape[:2], *e.shape[:2]).transpose(1, 2)
        return scorer(Block(s, v, e, v_mask, e_mask, "i", "c"))

    return of_chunks(image_chunks, caption_chunks, cross)


def chunked_pairs(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor,
    scorer: Callable[[Block], tuple[Tensor, ...]],
    transform: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, ...]:
    """Results of `scorer` for P pairs, each (P, …), in blocks of bounded size; as `chunked_scores`.

    Padded features are taken at their width, others at that of the longest item.
    """
    regions, words = widened(regions), widened(words)

    def score_pairs(v: Tensor, v_mask: Tensor, e: Tensor, e_mask: Tensor) -> tuple[Tensor, ...]:
        v, e = _prepare(v, transform), _prepare(e, transform)
        return scorer(Block(v @ e.mT, v, e, v_mask, e_mask, "p", "p"))

    return of_pairs(regions, words, pairs, max(1, WORKSPACE_BYTES // pair_bytes(regions, words)), score_pairs)


def of_chunks(
    images: Sequence[Ragged],
    captions: Sequence[Ragged],
    score: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    *,
    draws: bool = False,
) -> Tensor:
    """Scores (n_images, n_captions) of items in chunks, by `score` of regions, their mask, words and theirs, padded.

    What a call makes is made again in the backward pass; random numbers too where `score` `draws` some.
    """

    def score_chunk(image: Ragged, caption: Ragged) -> Tensor:
        def score_padded(v: Tensor, e: Tensor) -> Tensor:
            return score(*pad_items(image.with_values(v)), *pad_items(caption.with_values(e)))

        return recomputed(score_padded, image.values, caption.values, draws=draws)

    return torch.cat([torch.cat([score_chunk(v, e) for e in captions], 1) for v in images])


def of_pairs(
    regions: Ragged,
    words: Ragged,
    pairs: Tensor,
    size: int,
    score: Callable[..., tuple[Tensor, ...]],
    *parameters: Tensor,
    prepare: Callable[..., Tensor] | None = None,
    draws: bool = False,
) -> tuple[Tensor, ...]:
    """Results of `score` for P pairs, each (P, …), `size` pairs at a time; as `of_chunks`.

    `score` gets the parameters, too, as torch.compile sees arguments alone. `prepare` makes rows of rows and of these,
    once for each item of a chunk, ahead of the pairs.
    """
    widths = regions.width, words.width

    def score_chunk(v: Tensor, e: Tensor, chunk: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        sides: list[Tensor] = []
        for side, items, width in zip(
            (regions.with_values(v), words.with_values(e)), chunk.unbind(1), widths, strict=True
        ):
            if prepare is None or not checkable():
                rows, mask = gather_items(side, items, width)
                sides += rows if prepare is None else prepare(rows, *parameters), mask
            else:
                items, places = items.unique(return_inverse=True)
                rows, mask = gather_items(side, items, width)
                # Whose gradients are added up in one order, as those of `rows[places]` are not by several threads.
                sides += (x.index_select(0, places) for x in (prepare(rows, *parameters), mask))
        return score(*sides, *parameters)

    values = regions.values, words.values
    parts = [recomputed(score_chunk, *values, chunk, *parameters, draws=draws) for chunk in pairs.split(size)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def pair_bytes(regions: Ragged, words: Ragged) -> int:
    """Bytes of a pair: three copies of either item's rows, and similarity-sized arrays."""
    r, w = regions.width, words.width
    cells = _ARRAYS_PER_CELL * r * w + 3 * (r * regions.values.size(-1) + w * words.values.size(-1))
    return _computed_in(regions.values).itemsize * cells


def _computed_in(features: Tensor) -> torch.dtype:
    return torch.promote_types(features.dtype, torch.float32)


def widened(side: Ragged) -> Ragged:
    """Half-precision features as float32, where they get gradients: so these are summed and rounded once."""
    if not needs_gradient((side.values,)) and recomputes():
        return side
    return side.with_values(side.values.to(_computed_in(side.values)))


def _prepare(features: Tensor, transform: Callable[[Tensor], Tensor] | None) -> Tensor:
    features = features.to(_computed_in(features))
    return transform(features) if transform else features


def _no_scores(regions: Ragged, words: Ragged, transform: Callable[[Tensor], Tensor] | None) -> Tensor:
    """The scores of no pairs, which reach regions and words in the backward pass as any others do."""
    v, e = (_prepare(pad_items(side)[0][:, 0], transform) for side in (regions, words))
    return v @ e.T


def recomputed(function: Callable[..., Result], *arguments: object, draws: bool = False) -> Result:
    """The result of `function`, computed again in the backward pass and not kept until then.

    Under `torch.func` it is kept. The state of random generators is kept where the function `draws` from them alone.
    """
    if not recomputes():
        return function(*arguments)
    result: Result = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=draws)
    return result


def _chunk_rows(side: Ragged, other: Ragged) -> int:
    """Padded rows of `side` in a chunk: both sides get the square root of the workspace, or what the other leaves."""
    cells = WORKSPACE_BYTES // (4 * _ARRAYS_PER_CELL)
    longest = other.width if _split_by_width(other) else int(other.extents.max())
    return max(int(cells**0.5), cells // (longest * len(other)))


def _split_by_width(side: Ragged) -> bool:
    """Whether items are cut into chunks by the width alone: lengths may not be looked at while torch.compile traces."""
    return side.by_width or (side.offsets is None and not checkable())


def runs(lengths: list[int], rows: int) -> list[list[int]]:
    """Lengths of successive items, in groups whose padded form stays within `rows`, of one item at least."""
    return [lengths[run] for run in bounded_runs(np.asarray(lengths), len(lengths), rows)]


def split(side: Ragged, rows: int) -> list[Ragged]:
    """Successive items whose padded form stays within `rows`, at the width of their longest; at least one at a time."""
    if _split_by_width(side):
        return split_evenly(side, max(1, rows // side.width))
    groups = runs(side.extents.tolist(), rows)
    return split_items(side, [len(group) for group in groups], [max(group) for group in groups])


def split_evenly(side: Ragged, size: int) -> list[Ragged]:
    """So many successive items at a time, at the width of all."""
    counts = [min(size, len(side) - first) for first in range(0, len(side), size)]
    return split_items(side, counts, [side.width] * len(counts))
