r"""The functions of SCAN's published code, model.py of github.com/kuanghuei/SCAN, under their names and signatures.

Arguments and results are those of the published code, except on purpose:

| | published code | here |
|---|---|---|
| a length of 0 | minus infinity, NaN or an error, by `agg_func` | an error that names it |
| a length beyond the padding | all rows there are | an error that names it |
| a length below 0 | counts rows from the end | an error that names it |
| more lengths than captions | the first ones | an error; of fewer, as there |
| `lambda_lse` below 0 | a soft minimum | an error; of 0, where it divides by 0, too |
| one image, or one word or region that attends | an error of `sum`, or another sum | its scores |
| "l1norm", "clipped_l1norm" | an error: their function is missing | divided by Σ\|s\| + 1e-8 |
| gradients where a norm is 0 | NaN | 0 |
| scores of bfloat16 and float16 | rounded to that | float32, summed in float32 |

Errors call images, captions and cap_lens regions, words and word_lengths, as `crossret_kernels.scan_scores` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from crossret_kernels import ScanOptions, scan_attend, scan_scores, triplet_loss
from crossret_kernels.extending import Lengths, choose

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
        TypeError: no floating-point tensors, or of two dtypes or devices.
    """
    if query.dim() != 3 or context.dim() != 3 or query.shape[::2] != context.shape[::2]:
        raise ValueError(
            "query and context must have shapes (n, queryL, D) and (n, sourceL, D), "
            f"got {tuple(query.shape)} and {tuple(context.shape)}"
        )
    if (query.dtype, query.device) != (context.dtype, context.device):
        raise TypeError(
            "query and context must be of one dtype and on one device, "
            f"got {query.dtype} on {query.device} and {context.dtype} on {context.device}"
        )
    each = torch.arange(len(query), device=query.device)
    options = ScanOptions(raw_feature_norm=opt.raw_feature_norm, lambda_softmax=smooth)
    made = scan_attend(context, query, options=options, pairs=torch.stack([each, each], 1))
    return made.attended.to(query.dtype), made.weights.mT.to(query.dtype)


def xattn_score_t2i(images: Tensor, captions: Tensor, cap_lens: Lengths, opt: Any) -> Tensor:
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
            ``raw_feature_norm``. AttributeError: ``opt`` lacks one.
    """
    return _score("t2i", images, captions, cap_lens, opt)


def xattn_score_i2t(images: Tensor, captions: Tensor, cap_lens: Lengths, opt: Any) -> Tensor:
    """Scores of regions that attend to words (SCAN Eqs. 5, 6); arguments as ``xattn_score_t2i``."""
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

    def forward(self, im: Tensor, s: Tensor, s_l: Lengths) -> Tensor:
        """The loss, a scalar of the scores' dtype.

        Args:
            im: (n, n_regions, D) as ``images`` of ``xattn_score_t2i``.
            s: (n, max_n_word, D) as its ``captions``.
            s_l: (n,) as its ``cap_lens``.

        Raises:
            ValueError, TypeError: as ``xattn_score_t2i`` and ``crossret_kernels.triplet_loss``, there are not as many
                captions as images, or ``opt.cross_attn`` is neither.
        """
        choose("opt.cross_attn", self.opt.cross_attn, ("t2i", "i2t"))
        scores = _score(self.opt.cross_attn, im, s, s_l, self.opt)
        if scores.size(0) != scores.size(1):
            raise ValueError(f"im and s must match one to one, got {len(im)} images and {len(s)} captions")
        return triplet_loss(scores, margin=self.margin, negatives="hardest" if self.max_violation else "sum")


def _score(direction: str, images: Tensor, captions: Tensor, lengths: Lengths, opt: Any) -> Tensor:
    choose("opt.agg_func", opt.agg_func, tuple(_POOLINGS))
    pooling = _POOLINGS[opt.agg_func]
    options = ScanOptions(
        direction=direction,
        raw_feature_norm=opt.raw_feature_norm,
        lambda_softmax=opt.lambda_softmax,
        pooling=pooling,
        lambda_lse=opt.lambda_lse if pooling == "lse" else 1.0,  # the only pooling that reads it
    )
    return scan_scores(images, captions, None, lengths, options=options)
