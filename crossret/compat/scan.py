"""The functions of SCAN's published code, model.py of github.com/kuanghuei/SCAN, under their names and signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crossret_kernels import scan_scores, triplet_loss
from crossret_kernels.checks import choose
from crossret_kernels.cross_attention.attention import attention_logits
from crossret_kernels.cross_attention.options import NORM_MODES, CrossAttentionOptions
from crossret_kernels.inputs import Array

_SLOPE = 0.1  # of the LeakyReLU that the published code clips by
_POOLINGS = {"LogSumExp": "lse", "Max": "max", "Sum": "sum", "Mean": "avg"}


def func_attention(query: Tensor, context: Tensor, opt: Any, smooth: float, eps: float = 1e-8) -> tuple[Tensor, Tensor]:
    """Attend from every query to the contexts of its own item (SCAN Eqs. 2, 3), in PyTorch operations.

    Args:
        query: (n, queryL, D) float.
        context: (n, sourceL, D) float, of the same dtype and device.
        opt: has ``raw_feature_norm``, a mode of ``crossret_kernels.scan_scores``; "l1norm" and "clipped_l1norm", whose
            function the published code lacks, divide by Σ|s| + 1e-8.
        smooth: λ₁, inverse temperature of the softmax.
        eps: without effect, as in the published code, whose norms have their own 1e-8.

    Returns:
        The attended vectors (n, queryL, D), and the weights (n, sourceL, queryL), which sum to 1 over sourceL.
        Differentiable; where a norm is zero so is the quotient, and so is its gradient.

    Raises:
        ValueError: the shapes do not agree, or ``raw_feature_norm`` is no mode.
    """
    if query.dim() != 3 or context.dim() != 3 or query.shape[::2] != context.shape[::2]:
        raise ValueError(
            "query and context must have shapes (n, queryL, D) and (n, sourceL, D), "
            f"got {tuple(query.shape)} and {tuple(context.shape)}"
        )
    # Of these options the logits depend on the norm and the temperature alone.
    options = CrossAttentionOptions("t2i", _norm_of(opt), _SLOPE, smooth, "avg", 1.0, False)
    similarities = context @ query.mT
    everywhere = torch.ones((), dtype=torch.bool, device=query.device)
    masks = everywhere.expand(context.shape[:2]), everywhere.expand(query.shape[:2])
    attention = torch.softmax(attention_logits(similarities, *masks, options), 1)
    return attention.mT @ context, attention


def xattn_score_t2i(images: Tensor, captions: Tensor, cap_lens: Array | Sequence[int], opt: Any) -> Tensor:
    """Scores of all images with all captions, whose words attend to regions (SCAN Eqs. 7, 8), by ``scan_scores``.

    Args:
        images: (n_image, n_regions, D) float32, float64, bfloat16 or float16.
        captions: (n_caption, max_n_word, D), of the same dtype and device; what lies behind a caption's length is
            never read.
        cap_lens: (n_caption,) integers in 1..max_n_word, as a list, an array or a tensor.
        opt: has ``raw_feature_norm`` (see ``func_attention``), ``lambda_softmax``, ``agg_func`` ("LogSumExp", "Max",
            "Sum" or "Mean") and, for "LogSumExp", ``lambda_lse``, above 0.

    Returns:
        (n_image, n_caption) float32; float64 of float64 features. Differentiable in images and captions.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.scan_scores``, or ``opt`` has no known ``agg_func`` or
            ``raw_feature_norm``; names the argument. AttributeError: ``opt`` lacks one.
    """
    return _score("t2i", images, captions, cap_lens, opt)


def xattn_score_i2t(images: Tensor, captions: Tensor, cap_lens: Array | Sequence[int], opt: Any) -> Tensor:
    """As ``xattn_score_t2i``, of regions that attend to words (SCAN Eqs. 5, 6)."""
    return _score("i2t", images, captions, cap_lens, opt)


class ContrastiveLoss(nn.Module):
    """SCAN's triplet loss over the scores of a batch in which image i and caption i match, summed (Eqs. 11, 12).

    Args:
        opt: as for ``xattn_score_t2i``, and ``cross_attn``: "t2i" or "i2t".
        margin: of the hinges.
        max_violation: whether only the hardest negative of each image and caption counts (Eq. 12), or all do (Eq. 11).
    """

    def __init__(self, opt: Any, margin: float = 0, max_violation: bool = False) -> None:
        super().__init__()
        self.opt = opt
        self.margin = margin
        self.max_violation = max_violation

    def forward(self, im: Tensor, s: Tensor, s_l: Array | Sequence[int]) -> Tensor:
        """The loss, a scalar of the scores' dtype.

        Args:
            im: (n, n_regions, D) as ``images`` of ``xattn_score_t2i``.
            s: (n, max_n_word, D) as its ``captions``.
            s_l: (n,) as its ``cap_lens``.

        Raises:
            ValueError, TypeError: as ``xattn_score_t2i`` and ``crossret_kernels.triplet_loss``, there are not as many
                captions as images, or ``opt.cross_attn`` is neither.
        """
        if len(im) != len(s):
            raise ValueError(f"im and s must match one to one, got {len(im)} images and {len(s)} captions")
        choose("opt.cross_attn", self.opt.cross_attn, ("t2i", "i2t"))
        scores = _score(self.opt.cross_attn, im, s, s_l, self.opt)
        return triplet_loss(scores, margin=self.margin, negatives="hardest" if self.max_violation else "sum")


def _score(direction: str, images: Tensor, captions: Tensor, lengths: Array | Sequence[int], opt: Any) -> Tensor:
    choose("opt.agg_func", opt.agg_func, tuple(_POOLINGS))
    pooling = _POOLINGS[opt.agg_func]
    sharpness = {"lambda_lse": opt.lambda_lse} if pooling == "lse" else {}  # the only pooling that reads it
    return scan_scores(
        images, captions, word_lengths=lengths, direction=direction, raw_feature_norm=_norm_of(opt), clip_slope=_SLOPE,
        lambda_softmax=opt.lambda_softmax, pooling=pooling, **sharpness,
    )  # fmt: skip


def _norm_of(opt: Any) -> str:
    choose("opt.raw_feature_norm", opt.raw_feature_norm, NORM_MODES)
    name: str = opt.raw_feature_norm
    return name
