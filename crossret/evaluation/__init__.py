"""Retrieval quality: encode a data set, score every image with every caption, rank, and count."""

from crossret.evaluation.ensembles import ScoreMatrix, StoredScores, average_scores
from crossret.evaluation.finiteness import check_finite
from crossret.evaluation.metrics import (
    DirectionMetrics,
    RetrievalMetrics,
    five_fold,
    metrics_from_ranks,
    retrieval_metrics,
    retrieval_ranks,
)
from crossret.evaluation.scoring import encode_dataset, score_matrix
from crossret.progress import Progress

__all__ = [
    "DirectionMetrics",
    "Progress",
    "RetrievalMetrics",
    "ScoreMatrix",
    "StoredScores",
    "average_scores",
    "check_finite",
    "encode_dataset",
    "five_fold",
    "metrics_from_ranks",
    "retrieval_metrics",
    "retrieval_ranks",
    "score_matrix",
]
