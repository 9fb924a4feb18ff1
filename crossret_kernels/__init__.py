"""Fused pairwise scores for image–text matching: the public functions of crossret's tensor level."""

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.op import scan_scores
from crossret_kernels.cross_attention.topk import scan_topk
from crossret_kernels.maxsim.op import maxsim_scores
from crossret_kernels.maxsim.topk import maxsim_topk
from crossret_kernels.ranking_loss.op import triplet_loss

__all__ = ["UnsupportedByBackend", "maxsim_scores", "maxsim_topk", "scan_scores", "scan_topk", "triplet_loss"]
