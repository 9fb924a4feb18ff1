"""Fused pairwise scores for image–text matching: the public functions of crossret's tensor level."""

from crossret_kernels.attention_pool.op import PooledAttention, attention_pool, attention_pool_weights
from crossret_kernels.backends import UnsupportedByBackend
from crossret_kernels.contrastive_loss.op import infonce_loss, sigmoid_loss
from crossret_kernels.cross_attention.factors import scan_factors
from crossret_kernels.cross_attention.op import scan_scores, scan_topk
from crossret_kernels.cross_attention.options import ScanFields, ScanOptions
from crossret_kernels.cross_attention.scan_attend import (
    ScanAttended,
    ScanAttention,
    ScanContributions,
    scan_attend,
    scan_attention,
    scan_contributions,
)
from crossret_kernels.cross_attention.scan_attend_scores import scan_attend_scores
from crossret_kernels.gated_attention.op import GatedAttentionWeights, gated_attention_scores, gated_attention_weights
from crossret_kernels.gated_attention.options import AttentionStep, GatedAttention
from crossret_kernels.heterogeneous_attention.op import heterogeneous_attention_weights, heterogeneous_scores
from crossret_kernels.heterogeneous_attention.options import (
    HeterogeneousFields,
    HeterogeneousLayer,
    HeterogeneousOptions,
)
from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.maxsim.op import MaxSimArgmax, maxsim_argmax, maxsim_scores, maxsim_topk
from crossret_kernels.maxsim.options import MaxSimFields, MaxSimOptions
from crossret_kernels.pairwise.op import pairwise_scores
from crossret_kernels.ranking_loss.op import triplet_loss

__all__ = [
    "AttentionStep",
    "GatedAttention",
    "GatedAttentionWeights",
    "HeterogeneousFields",
    "HeterogeneousLayer",
    "HeterogeneousOptions",
    "MaxSimArgmax",
    "MaxSimFields",
    "MaxSimOptions",
    "PooledAttention",
    "Ragged",
    "ScanAttended",
    "ScanAttention",
    "ScanContributions",
    "ScanFields",
    "ScanOptions",
    "UnsupportedByBackend",
    "attention_pool",
    "attention_pool_weights",
    "gated_attention_scores",
    "gated_attention_weights",
    "heterogeneous_attention_weights",
    "heterogeneous_scores",
    "infonce_loss",
    "maxsim_argmax",
    "maxsim_scores",
    "maxsim_topk",
    "pairwise_scores",
    "scan_attend",
    "scan_attend_scores",
    "scan_attention",
    "scan_contributions",
    "scan_factors",
    "scan_scores",
    "scan_topk",
    "sigmoid_loss",
    "triplet_loss",
]
