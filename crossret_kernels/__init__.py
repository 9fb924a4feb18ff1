"""Fused pairwise scores for image–text matching: the public functions of crossret's tensor level."""

from crossret_kernels.attention_pool.op import attention_pool
from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.cross_attention.op import scan_scores
from crossret_kernels.cross_attention.topk import scan_topk
from crossret_kernels.gated_attention.op import gated_attention_scores
from crossret_kernels.gated_attention.parameters import AttentionStep, GatedAttention
from crossret_kernels.heterogeneous_attention.op import heterogeneous_scores
from crossret_kernels.heterogeneous_attention.options import HeterogeneousLayer
from crossret_kernels.maxsim.op import maxsim_scores
from crossret_kernels.maxsim.topk import maxsim_topk
from crossret_kernels.ranking_loss.op import triplet_loss

__all__ = [
    "AttentionStep",
    "GatedAttention",
    "HeterogeneousLayer",
    "UnsupportedByBackend",
    "attention_pool",
    "gated_attention_scores",
    "heterogeneous_scores",
    "maxsim_scores",
    "maxsim_topk",
    "scan_scores",
    "scan_topk",
    "triplet_loss",
]
