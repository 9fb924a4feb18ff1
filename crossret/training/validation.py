"""Retrieval on a development set by all ranks: each scores its share of the images, the first ranks them all."""

from __future__ import annotations

import numpy as np
import torch

from crossret.data.corpus import Corpus
from crossret.distributed import Group, Share
from crossret.evaluation import RetrievalMetrics, encode_dataset, retrieval_metrics, score_matrix
from crossret.evaluation.finiteness import check_finite
from crossret.evaluation.scoring import items_at_once
from crossret.models.protocol import Matcher


def validate(model: Matcher, data: Corpus, group: Group, *, batch_size: int) -> RetrievalMetrics:
    """Recall and ranks of ``data``, the same on every rank.

    Args:
        model: with the same weights on every rank.
        batch_size: items encoded at a time, and more on a GPU (see ``items_at_once``).

    Raises:
        ValueError: as ``check_finite``, on every rank. RankLost: another rank has ended.
    """
    image_share, caption_share = Share.cut(group, data.n_images), Share.cut(group, data.n_captions)
    images, captions = encode_dataset(
        model,
        data,
        batch_size=items_at_once(model, batch_size),
        image_items=image_share.encoded_rows,
        caption_items=caption_share.encoded_rows,
    )
    if group.size == 1:
        scores = score_matrix(model, images, captions, corpus=data)
        return retrieval_metrics(scores, data.image_of_caption)
    with torch.inference_mode():
        all_captions = captions[: caption_share.n].gathered(caption_share)
        own = torch.from_numpy(score_matrix(model, images[: image_share.n], all_captions))
        whole = group.collected(own, image_share.counts)

    def rank_all() -> RetrievalMetrics:
        scores = np.concatenate([part.numpy() for part in whole])
        check_finite(scores, data)
        return retrieval_metrics(scores, data.image_of_caption)

    return group.first(rank_all)
