"""Scores that are no finite numbers: found before anything is measured by them, with the image that made them so."""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from crossret.data.corpus import Corpus, PrecomputedCorpus


def check_finite(scores: NDArray[np.floating], corpus: Corpus, *, first_caption: int = 0) -> None:
    """Refuse scores that are NaN or infinite.

    An infinite score has a rank, but none that its model gave it: it is what became of a number beyond float32.

    Args:
        scores: (n_images, n) a model's scores of all images with some captions.
        corpus: what was scored.
        first_caption: the caption of the first column; the others follow it.

    Raises:
        ValueError: a score is no finite number; names the image and the caption, and says why.
    """
    finite = np.isfinite(scores)
    if finite.all():
        return
    image, column = (int(place) for place in np.unravel_index(finite.argmin(), finite.shape))
    raise ValueError(
        f"image {image} has the score {scores[image, column]} with caption {first_caption + column}: "
        f"{why_not_finite(corpus, image)}"
    )


def why_not_finite(corpus: Corpus, image: int) -> str:
    """What to say of an image of which a model made something that is no finite number.

    Names the file and the row of its features, where the corpus is one of files.
    """
    if isinstance(corpus, PrecomputedCorpus):
        row = int(corpus.data.feature_rows[image])
        place, finite = f"{corpus.data.stored.path}: item {row}", corpus.data.stored.is_finite(row)
    else:
        regions, _ = next(islice(corpus.image_batches(1), image, None))
        place, finite = f"image {image}", bool(regions.isfinite().all())
    if not finite:
        return f"{place} has features that are not finite in float32"
    return f"{place} has finite features, but the model's weights are not finite or its numbers go beyond float32"
