"""InfoNCE of the rows alone, by PyTorch operations: half of the loss where columns are another process's."""

from __future__ import annotations

from torch import Tensor

from crossret_kernels.contrastive_loss.options import InfoNceOptions, Number, as_number
from crossret_kernels.contrastive_loss.torch import cross_entropies, with_targets
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.score_matrix import Ids, as_ids, check_shape, matches


def infonce_row_loss(
    scores: Tensor,
    scale: Number,
    *,
    image_ids: Ids = None,
    caption_ids: Ids = None,
    label_smoothing: float = 0.0,
    positive_offset: int = 0,
) -> Tensor:
    """The cross entropy of every row's softmax: ``infonce_loss`` without the columns, and not halved.

    Of a matrix whose rows are spread over processes, the loss is half the sum of this over all rows and, on the
    transpose, over all columns: each process takes its rows, and the columns that others have sent it.

    Args:
        scores: (n_rows, n_columns) floating point; row i and column i + positive_offset match.
        others: as in ``crossret_kernels.infonce_loss``.

    Returns:
        (n_rows,), in the scores' dtype, float32 for half precision. It is differentiable twice.

    Raises:
        ValueError, TypeError: as ``crossret_kernels.infonce_loss``.
    """
    options = checked(InfoNceOptions, None, {"label_smoothing": label_smoothing, "reduction": "none"})
    check_shape(scores, positive_offset)
    images, captions = as_ids(image_ids, "image_ids", scores), as_ids(caption_ids, "caption_ids", scores)
    match = matches(scores, images, captions, positive_offset)
    logits, targets = with_targets(scores, as_number(scale, "scale", scores), match)
    return cross_entropies(logits, *targets, options.label_smoothing)
