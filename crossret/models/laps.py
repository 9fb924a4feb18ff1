"""LAPS: Linguistic-Aware Patch Slimming Framework for Fine-grained Cross-Modal Alignment (Fu et al., CVPR 2024)."""

from __future__ import annotations

from math import isqrt
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossret.encoders import RegionEncoder, TokenEncoder, WordEncoder, l2_normalize
from crossret.hyperparameters import LapsConfig
from crossret.losses import matching_loss
from crossret.models.attention import AttentionMap, paired, word_map
from crossret.models.base import Model
from crossret.models.contributions import ScoreShares, SharePart
from crossret.models.encoded import Encoded
from crossret_kernels.extending import WORKSPACE_BYTES, recomputed

_HIDDEN = 0.2  # units of the aggregation's hidden layer, of D


class Laps(Model):
    """LAPS: each caption keeps the patches that it has to do with, as a few tokens, and is compared with these alone.

    For an image and a caption every patch gets the cosine with the mean of the image's patches and that with the mean
    of the caption's words. The share ``keep_ratio`` with the largest sums stays and is aggregated to ``aggregated``
    tokens, weighted means; the others are fused into one more, by a softmax of their sums. Then every word takes its
    most similar token and every token its most similar word, and the two means of these similarities are added
    (LAPS §3.2–3.4, ``CrossSparseAggrNet_v2`` and ``mask_xattn_one_text`` of the published code).

    The published code loops over captions and keeps all it makes; here pairs are scored in blocks of bounded memory,
    which the backward pass makes again. The sums that patches are chosen by get no gradient, as there. Its further loss
    of the share of kept patches is left out: for a fixed share it is 0 and has no gradient.

    Parameters: ``image.fc.*``, ``text.*`` and ``slimming.*``.
    """

    kind: ClassVar[str] = LapsConfig.kind
    config: LapsConfig

    def __init__(self, config: LapsConfig) -> None:
        super().__init__()
        self.config = config
        self.image = RegionEncoder(config.image_dim, config.embed_dim, normalize=False)
        self.text = (
            WordEncoder(config.vocabulary_size, config.word_dim, config.embed_dim, normalize=False)
            if config.text_dim is None
            else TokenEncoder(config.text_dim, config.embed_dim)
        )
        self.slimming = PatchSlimming(config)
        self.matching_loss = matching_loss(config)

    def _images(self, features: Tensor, lengths: Tensor, boxes: Tensor | None) -> Encoded:
        return Encoded(self.image(features), lengths)

    def _captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(self.text(tokens, lengths), lengths)

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) scores, or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        size = max(1, WORKSPACE_BYTES // self._bytes_per_pair(images, captions, pairs is not None))
        if pairs is not None:
            return torch.cat([self._scores(images, captions, part) for part in pairs.split(size)])
        height = max(1, min(len(images), isqrt(size)))
        width = max(1, size // height)
        image_blocks = [images[first : first + height] for first in range(0, max(len(images), 1), height)]
        caption_blocks = [captions[first : first + width] for first in range(0, max(len(captions), 1), width)]
        rows = [torch.cat([self._scores(v, e) for e in caption_blocks], 1) for v in image_blocks]
        return torch.cat(rows)

    def _scores(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """Scores of a block, of all its pairs or of listed ones; made again for gradients."""

        def scores(patches: Tensor, words: Tensor) -> Tensor:
            lengths = images.lengths, captions.lengths
            if pairs is not None:  # gathered here, so that no block's rows are kept
                i, c = pairs.unbind(1)
                patches, words, lengths = patches[i], words[c], (lengths[0][i], lengths[1][c])
            aligned = self._align(patches, lengths[0], words, lengths[1], pairs is not None)
            of_words = _mean(aligned.of_words, aligned.word_mask)
            return of_words + _mean(aligned.of_tokens, aligned.tokens.mask)

        return recomputed(scores, images.sequences, captions.sequences)

    @torch.no_grad()
    def attention(self, images: Encoded, captions: Encoded) -> tuple[AttentionMap, ...]:
        """Maps of words over the patches of the tokens they take, and of patches over the words their tokens take."""
        aligned = self._aligned_pairs(images, captions)
        word_mask, tokens = aligned.word_mask, aligned.tokens.weights  # (P, T, R)
        of_words = tokens.gather(1, aligned.token_of_word[:, :, None].expand(-1, -1, tokens.shape[2]))
        taken = F.one_hot(aligned.word_of_token, word_mask.shape[1]).to(tokens.dtype)
        of_patches = tokens.mT @ (taken * aligned.tokens.mask[:, :, None])
        of_patches = of_patches / of_patches.sum(2, keepdim=True).clamp(min=torch.finfo(tokens.dtype).tiny)
        relevances = aligned.of_words.masked_fill(~word_mask, 0)
        return (
            AttentionMap("t2i", of_words.masked_fill(~word_mask[:, :, None], 0), relevances),
            word_map("i2t", of_patches, _of_patches(aligned)[1]),
        )

    @torch.no_grad()
    def contributions(self, images: Encoded, captions: Encoded) -> ScoreShares:
        """Shares of words, by their token's similarity, and of patches, by those of the tokens they are parts of."""
        aligned = self._aligned_pairs(images, captions)
        of_words = aligned.of_words.double().masked_fill(~aligned.word_mask, 0)
        shares, relevances = _of_patches(aligned)
        parts = (
            SharePart("t2i", "words", of_words / aligned.word_mask.sum(1, keepdim=True), of_words),
            SharePart("i2t", "regions", shares, relevances),
        )
        return ScoreShares.adding_up(self.score(images, captions, paired(images, captions)), parts)

    def _aligned_pairs(self, images: Encoded, captions: Encoded) -> Aligned:
        paired(images, captions)  # which says where they are none
        return self._align(images.sequences, images.lengths, captions.sequences, captions.lengths, True)

    def _align(self, patches: Tensor, lengths: Tensor, words: Tensor, word_lengths: Tensor, in_pairs: bool) -> Aligned:
        """Patches (n, R, D) and words (m, W, D): all pairs, "…" is (n, m), or image i with caption i, "…" is (n,)."""
        patches, row_mask = _zeroed(patches, lengths)
        words, word_mask = _zeroed(words, word_lengths)
        tokens = self.slimming(patches, row_mask, words, word_mask, in_pairs)
        units = l2_normalize(tokens.values)
        # One product for each caption of all pairs: (m, n T, D) by (m, D, W).
        of_captions = units if in_pairs else units.transpose(0, 1).flatten(1, 2)
        similarities = F.leaky_relu(of_captions @ l2_normalize(words).mT, self.config.clip_slope)
        if not in_pairs:
            similarities = similarities.unflatten(1, units.shape[:3:2]).transpose(0, 1)
            word_mask = word_mask.expand(len(patches), -1, -1)
        of_words = similarities.masked_fill(~tokens.mask[..., None], -torch.inf).max(-2)
        of_tokens = similarities.masked_fill(~word_mask[..., None, :], -torch.inf).max(-1)
        return Aligned(tokens, word_mask, of_words.values, of_words.indices, of_tokens.values, of_tokens.indices)

    def _bytes_per_pair(self, images: Encoded, captions: Encoded, in_pairs: bool) -> int:
        """Bytes of a pair and its backward pass: weights, tokens and similarities some six times; in pairs its rows."""
        regions, dim = images.sequences.shape[1:]
        words, tokens = captions.sequences.shape[1], self.config.aggregated + 2
        numbers = 6 * tokens * (regions + dim + words)
        rows = 4 * (regions * (dim + tokens) + words * dim) if in_pairs else 0
        return images.sequences.itemsize * (numbers + rows)


class Tokens(NamedTuple):
    """Tokens of pairs: the global one, if there is one, the aggregated ones, and that of the patches left out.

    Attributes:
        values: (…, T, D).
        mask: (…, T) bool, which there are: of an image whose patches are all kept nothing is left out.
        weights: (…, T, R), each token's over the image's regions, which sum to one.
    """

    values: Tensor
    mask: Tensor
    weights: Tensor


class Aligned(NamedTuple):
    """Similarities of pairs.

    Attributes:
        tokens: of the images.
        word_mask: (…, W) bool.
        of_words, token_of_word: (…, W), of each word with its most similar token, and which that is.
        of_tokens, word_of_token: (…, T), of each token with its most similar word, and which that is.
    """

    tokens: Tokens
    word_mask: Tensor
    of_words: Tensor
    token_of_word: Tensor
    of_tokens: Tensor
    word_of_token: Tensor


class PatchSlimming(nn.Module):
    """Patches of an image chosen by a caption, and aggregated (LAPS §3.2 and §3.3).

    Parameters: ``aggregation.*``, of a layer norm and two linear layers that give each patch a logit for every token;
    ``scale``, which multiplies these.
    """

    def __init__(self, config: LapsConfig) -> None:
        super().__init__()
        self.keep_ratio, self.global_token = config.keep_ratio, config.global_token
        hidden = max(1, int(config.embed_dim * _HIDDEN))
        self.aggregation = nn.Sequential(
            nn.LayerNorm(config.embed_dim),
            nn.Linear(config.embed_dim, hidden),
            nn.GELU(),
            nn.Linear(hidden, config.aggregated),
        )
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, patches: Tensor, row_mask: Tensor, words: Tensor, word_mask: Tensor, in_pairs: bool) -> Tokens:
        """Tokens of patches (n, R, D) for captions of words (m, W, D), with their masks; see ``Laps._align``."""
        mask = F.pad(row_mask[:, 1:], (1, 0)) if self.global_token else row_mask
        logits = (self.scale * self.aggregation(patches)).mT
        with torch.no_grad():
            sums = _sums(
                l2_normalize(patches), _mean_direction(patches, mask), _mean_direction(words, word_mask), in_pairs
            )
        if not in_pairs:
            mask, row_mask, logits = (x[:, None].expand(-1, len(words), *x.shape[1:]) for x in (mask, row_mask, logits))
        sums = sums.masked_fill(~mask, -torch.inf)
        ranks = sums.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        kept = mask & (ranks < (mask.sum(-1, keepdim=True).double() * self.keep_ratio).ceil())
        left_out = mask & ~kept
        weights = [_softmax(logits, kept[..., None, :]), _softmax(sums, left_out)[..., None, :]]
        some = kept.any(-1, keepdim=True), left_out.any(-1, keepdim=True)
        there = [some[0].expand(*some[0].shape[:-1], logits.shape[-2]), some[1]]
        if self.global_token:
            first = torch.zeros_like(weights[1])
            first[..., 0] = 1
            weights, there = [first, *weights], [row_mask[..., :1], *there]
        of_tokens = torch.cat(weights, -2)
        # One product for each image of all pairs: (n, m T, R) by (n, R, D).
        values = of_tokens @ patches if in_pairs else of_tokens.flatten(1, 2) @ patches
        return Tokens(values.view(*of_tokens.shape[:-1], patches.shape[-1]), torch.cat(there, -1), of_tokens)


def _sums(patches: Tensor, images: Tensor, captions: Tensor, in_pairs: bool) -> Tensor:
    """(…, R) cosines of patches with the mean of their image and with that of the caption, all of length 1."""
    own = (patches @ images[:, :, None])[:, :, 0]
    if in_pairs:
        return own + (patches @ captions[:, :, None])[:, :, 0]
    return own[:, None] + (patches @ captions.T).mT


def _of_patches(aligned: Aligned) -> tuple[Tensor, Tensor]:
    """(P, R) float64 shares of the tokens' part of the score, and (P, R) mean similarities of a patch's tokens."""
    tokens = aligned.tokens
    weights = tokens.weights.double()
    similarities = aligned.of_tokens.double().masked_fill(~tokens.mask, 0)[:, :, None]
    shares = (weights * similarities).sum(1)
    relevances = shares / weights.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    return shares / tokens.mask.sum(1, keepdim=True), relevances.to(aligned.of_tokens.dtype)


def _zeroed(rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n, L, D) with zeros at the padding, and the mask (n, L) of the others."""
    mask = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    return rows.masked_fill(~mask[:, :, None], 0), mask


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the valid values (…, n), at least float32: autocast has similarities in its dtype."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return values.masked_fill(~mask, 0).sum(-1) / mask.sum(-1)


def _mean_direction(rows: Tensor, mask: Tensor) -> Tensor:
    """The mean of the valid rows (n, L, D), of length 1."""
    return l2_normalize(rows.masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def _softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """The softmax of the valid logits (…, n), zero elsewhere, and where there is none."""
    logits = logits.masked_fill(~mask & mask.any(-1, keepdim=True), -torch.inf)
    return torch.softmax(logits, -1).masked_fill(~mask, 0)
