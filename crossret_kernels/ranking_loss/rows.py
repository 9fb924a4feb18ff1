"""The ranking loss of the rows alone, by PyTorch operations: half of the loss where columns are another process's."""

from __future__ import annotations

from torch import Tensor

from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import Ids, as_ids, check_shape, in_float32, matches
from crossret_kernels.ranking_loss.options import LossOptions
from crossret_kernels.ranking_loss.torch import pooled


def triplet_row_loss(
    scores: Tensor,
    *,
    margin: float = 0.2,
    negatives: str = "hardest",
    p: float = 8.0,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    positive_offset: int = 0,
) -> Tensor:
    """The loss of every row's positive among the negatives of its row: ``triplet_loss`` without the columns.

    Of a matrix whose rows are spread over processes, the loss is the sum of this over all rows and, on the transpose,
    over all columns: each process takes its rows, and the columns that others have sent it.

    Args:
        scores: (n_rows, n_columns) floating point; row i and column i + positive_offset match.
        others: as in ``crossret_kernels.triplet_loss``.

    Returns:
        (n_rows,), in the scores' dtype, float32 for half precision. It is differentiable twice.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.triplet_loss``.
    """
    options = checked(LossOptions, None, {"margin": margin, "negatives": negatives, "p": p, "reduction": "none"})
    check_shape(scores, positive_offset)
    images, captions = as_ids(image_ids, "image_ids", scores), as_ids(caption_ids, "caption_ids", scores)
    exact = in_float32(scores)
    match = matches(exact, images, captions, positive_offset)
    return pooled(exact, match, exact.diagonal(positive_offset)[: len(exact)], options)
