"""Fused pairwise scores for image–text matching: the public functions of crossret's tensor level."""

from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.op import scan_scores
from crossret_kernels.maxsim.op import maxsim_scores
from crossret_kernels.ranking_loss.op import triplet_loss

__all__ = ["UnsupportedByBackend", "maxsim_scores", "scan_scores", "triplet_loss"]
