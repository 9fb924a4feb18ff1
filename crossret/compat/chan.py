"""The similarity encoder of CHAN's published code, lib/encoders.py of github.com/ppanzx/CHAN, under its name and
signature: a coding and a pooling in one, of which nothing in between is built.

| coding_type | of | by |
|---|---|---|
| "VHACoding" | each word | its largest similarity to a region |
| "THACoding" | each region | its largest similarity to a word |
| "VSACoding" | each region | its product with the unit vector of what it attends to among the words |

Pooled by "MaxPooling", "MeanPooling", "SumPooling", "LSEPooling" or "SoftmaxPooling". Arguments and results are those
of the published code, except on purpose:

| | published code | here |
|---|---|---|
| a similarity of exactly −1 | counts as padding | counts |
| similarities below −1 beside padding | the padding's −1 is the maximum | maxima of what is there |
| "SoftmaxPooling" of captions of several lengths | NaN | their scores |
| "VSACoding" divides by | ‖attended‖ + 1e-8 | ‖attended‖, of 1e-8 at least |
| a length of 0 or beyond the padding | NaN, or all rows there are | an error that names it |
| scores of bfloat16 and float16 | rounded to that | float32, summed in float32 |

Errors call img_emb, cap_emb and their lengths regions, words, region_lengths and word_lengths, as
`crossret_kernels.scan_scores` does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from crossret_kernels import MaxSimOptions, ScanOptions, maxsim_scores, scan_scores
from crossret_kernels.extending import Lengths, choose

POOLINGS = {
    "MaxPooling": "max", "MeanPooling": "avg", "SumPooling": "sum", "LSEPooling": "lse", "SoftmaxPooling": "softmax",
}  # fmt: skip
HARD = {"VHACoding": "t2i", "THACoding": "i2t"}
CODINGS = (*HARD, "VSACoding")


class SimsEncoder(nn.Module):
    """Scores of all images with all captions (CHAN, Pan et al., CVPR 2023).

    Args:
        coding_type, pooling_type: as above.
        opt: has ``belta``, the temperature of "LSEPooling" and "SoftmaxPooling", and for "VSACoding" ``alpha``, that of
            the attention; both above 0.

    Raises:
        ValueError: an unknown type, or a temperature that is not above 0. AttributeError: ``opt`` lacks one.
    """

    def __init__(self, coding_type: str, pooling_type: str, *, opt: Any) -> None:
        super().__init__()
        choose("coding_type", coding_type, CODINGS)
        choose("pooling_type", pooling_type, tuple(POOLINGS))
        pooling = POOLINGS[pooling_type]
        lambda_lse = _inverse("belta", opt.belta) if pooling in ("lse", "softmax") else 1.0
        self.scale = lambda_lse if pooling == "lse" else 1.0  # the published pooling is not divided by it
        self.options: ScanOptions | MaxSimOptions
        if coding_type in HARD:
            self.options = MaxSimOptions(direction=HARD[coding_type], pooling=pooling, lambda_lse=lambda_lse)
        else:
            self.options = ScanOptions(
                direction="i2t", raw_feature_norm="no_norm", lambda_softmax=_inverse("alpha", opt.alpha),
                relevance="projection", pooling=pooling, lambda_lse=lambda_lse,
            )  # fmt: skip

    def forward(self, img_emb: Tensor, cap_emb: Tensor, img_lens: Lengths, cap_lens: Lengths) -> Tensor:
        """Scores of all images with all captions.

        Args:
            img_emb: (n_image, n_regions, D) float32, float64, bfloat16 or float16.
            cap_emb: (n_caption, n_words, D), of the same dtype and device.
            img_lens, cap_lens: (n_image,) and (n_caption,) integers, how many rows of each count; what lies behind is
                never read.

        Returns:
            (n_image, n_caption) float32; float64 of float64 features. Differentiable in both.

        Raises:
            ValueError, TypeError: as ``crossret_kernels.maxsim_scores``.
        """
        sides = img_emb, cap_emb, img_lens, cap_lens
        if isinstance(self.options, MaxSimOptions):
            return self.scale * maxsim_scores(*sides, options=self.options)
        return self.scale * scan_scores(*sides, options=self.options)

    def extra_repr(self) -> str:
        return repr(self.options)


def _inverse(name: str, temperature: float) -> float:
    if not temperature > 0:
        raise ValueError(f"opt.{name} must be above 0, not {temperature!r}")
    return 1 / temperature
