"""The alignments of LAPS's published code, lib/xttn.py of github.com/CrossmodalGroup/LAPS, under their names and
signatures; AVSE and SEPS have the same.

Arguments and results are those of the published code, except on purpose:

| | published code | here |
|---|---|---|
| a length of 0 or beyond the padding | NaN, or all rows there are | an error that names it |
| an image whose patches are all masked | a maximum of −1000 | an error that names it |
| an `xattn_type` of another name | "max_mean" | an error |
| `bi_norm` | similarities divided by their norm | an error: it has no kernel |
| patches of every caption, four dimensions | an error | an error that says so |
| scores of bfloat16 and float16 | rounded to that | float32, summed in float32 |

Errors call images, captions and cap_lens regions, words and word_lengths, as `crossret_kernels.scan_scores` does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from crossret_kernels.extending import Lengths, choose

XATTN_TYPES = "max_mean", "scan_t2i", "scan_i2t", "scan_all"
CLIP_SLOPE = 0.1


def xattn_score_t2i(images: Tensor, captions: Tensor, cap_lens: Lengths, smooth: float = 9.0) -> Tensor:
    """SCAN's scores of all images with all captions, whose words attend to patches, averaged over the words.

    Args:
        images: (n_image, n_patches, D) float32, float64, bfloat16 or float16.
        captions: (n_caption, max_n_word, D), of the same dtype and device; what lies behind a length is never read.
        cap_lens: (n_caption,) integers in 1..max_n_word, as a list, an array or a tensor.
        smooth: λ₁, inverse temperature of the softmax.

    Returns:
        (n_image, n_caption) float32; float64 of float64 features. Differentiable in images and captions.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.scan_scores``.
    """
    return scan_scores(images, captions, None, cap_lens, normalize=True, lambda_softmax=smooth)


def xattn_score_i2t(images: Tensor, captions: Tensor, cap_lens: Lengths, smooth: float = 4.0) -> Tensor:
    """Scores of patches that attend to words; arguments as ``xattn_score_t2i``."""
    return scan_scores(images, captions, None, cap_lens, direction="i2t", normalize=True, lambda_softmax=smooth)


def xattn_score_two(
    images: Tensor, captions: Tensor, cap_lens: Lengths, smooth_t2i: float = 9.0, smooth_i2t: float = 4.0
) -> Tensor:
    """The mean of ``xattn_score_t2i`` and ``xattn_score_i2t``."""
    both = smooth_t2i, smooth_i2t
    return scan_scores(images, captions, None, cap_lens, direction="both", normalize=True, lambda_softmax=both)


def matching_max_mean(
    img_regions: Tensor, cap_words: Tensor, cap_len: Lengths, i2t: bool = False, scan: bool = False,
    bi_norm: bool = False,
) -> Tensor:  # fmt: skip
    """Mean cosine of each word with its most similar patch, of all images with all captions.

    Args:
        img_regions, cap_words, cap_len: as ``images``, ``captions`` and ``cap_lens`` of ``xattn_score_t2i``.
        i2t: the mean of that and the mean cosine of each patch with its most similar word.
        scan: multiply cosines below zero by 0.1 first.

    Returns:
        (n_image, n_caption), as ``xattn_score_t2i``.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.maxsim_scores``, or ``bi_norm`` is true.
    """
    if bi_norm:
        raise ValueError("bi_norm=True has no kernel: similarities are not divided by their norms")
    slope = CLIP_SLOPE if scan else 1.0
    return maxsim_scores(
        img_regions, cap_words, None, cap_len, direction="both" if i2t else "t2i", normalize=True, pooling="avg",
        clip_slope=slope,
    )  # fmt: skip


def mask_xattn_one_text(
    img_embs: Tensor, cap_i_expand: Tensor, img_mask: Tensor | None = None, i2t: bool = True, scan: bool = True
) -> Tensor:
    """Scores of images, each with its row of one caption's words, by similarities of vectors as they are.

    Args:
        img_embs: (n, n_patches, D).
        cap_i_expand: (n, n_word, D), all of them words.
        img_mask: (n, n_patches), 0 where a patch does not count; None: all do.
        i2t: add the mean of each patch's largest similarity to that of each word's.
        scan: multiply similarities below zero by 0.1 first.

    Returns:
        (n, 1), as ``xattn_score_t2i``.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.maxsim_scores``.
    """
    each = torch.arange(len(img_embs), device=img_embs.device)
    scores = maxsim_scores(
        img_embs, cap_i_expand, region_mask=None if img_mask is None else img_mask.bool(),
        pairs=torch.stack([each, each], 1), direction="both" if i2t else "t2i", pooling="avg",
        clip_slope=CLIP_SLOPE if scan else 1.0,
    )  # fmt: skip
    return (2 * scores if i2t else scores)[:, None]


def xattn_score(
    img_cross: Tensor, cap_cross: Tensor, cap_len: Lengths, xattn_type: str = "max_mean", i2t: bool = True,
    scan: bool = True,
) -> Tensor:  # fmt: skip
    """One of these scores: "max_mean" (``matching_max_mean``), "scan_t2i", "scan_i2t" or "scan_all", the mean of both.

    Raises:
        ValueError, TypeError: as these, or ``xattn_type`` is none of them.
    """
    choose("xattn_type", xattn_type, XATTN_TYPES)
    if xattn_type == "max_mean":
        return matching_max_mean(img_cross, cap_cross, cap_len, i2t, scan)
    if xattn_type == "scan_all":
        return xattn_score_two(img_cross, cap_cross, cap_len)
    return (xattn_score_t2i if xattn_type == "scan_t2i" else xattn_score_i2t)(img_cross, cap_cross, cap_len)
