"""A page of a split: captions with their images, what the model found for them, and its recall."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crossret.data.corpus import PrecomputedCorpus
from crossret.data.pictures import find_pictures
from crossret.data.prepared import PictureFiles
from crossret.data.scenes.grounding import Grounding
from crossret.data.scenes.layout import picture_path
from crossret.evaluation import encode_dataset, retrieval_ranks, score_matrix
from crossret.explain.explanation import Explanation
from crossret.explain.page.contents import Curve, Page, Pair, Result
from crossret.explain.page.pairs import UNSEEN, UNSHARED, notes_of
from crossret.models.base import tokens_of
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating
from crossret.progress import Progress


@dataclass(frozen=True)
class ScoredSplit:
    """A split as a model scores it.

    Attributes:
        images, captions: encoded, all of them.
        scores: (n_images, n_captions) float32, finite.
    """

    images: Encoded
    captions: Encoded
    scores: NDArray[np.float32]

    @staticmethod
    def of(model: Matcher, corpus: PrecomputedCorpus, *, progress: Progress | None = None) -> ScoredSplit:
        """Encode and score a split; raises as ``encode_dataset`` and ``score_matrix``."""
        encoded = encode_dataset(model, corpus, progress=progress)
        return ScoredSplit(*encoded, score_matrix(model, *encoded, corpus=corpus, progress=progress))


def split_page(
    model: Matcher,
    corpus: PrecomputedCorpus,
    captions: Sequence[int],
    *,
    name: str,
    k: int = 5,
    photographs: str | os.PathLike[str] | None = None,
    scenes: str | os.PathLike[str] | None = None,
    grounding: Sequence[Grounding] | None = None,
    scored: ScoredSplit | None = None,
    progress: Progress | None = None,
) -> Page:
    """Explain captions of a split with their own images and, where the model prefers another, with that one, too.

    Args:
        model: any; in evaluation mode meanwhile.
        corpus: the split. All of it is scored, to rank what is found.
        captions: the numbers of those that are shown.
        name: the split's.
        k: how many results of each search are shown.
        photographs: the directory of the images' pictures, named as ``find_pictures`` has it.
        scenes: the directory of the data, where rendered scenes have their pictures. Without either the pictures are
            those that the model read, or the regions lie on nothing.
        grounding: which objects the captions name, one entry a caption.
        scored: all of the split, where it has been encoded and scored.
        progress: called with (captions explained, all of them), before with what is encoded and scored.

    Raises:
        OSError: a file cannot be read.
        ValueError: an image has no picture, or several, or regions that are no square grid and have no boxes; a score
            is no finite number.
    """
    with evaluating(model):
        split = scored or ScoredSplit.of(model, corpus, progress=progress)
        scores, owners = split.scores, corpus.image_of_caption
        i2t, t2i = retrieval_ranks(scores, owners)
        wanted: list[tuple[int, int]] = []
        found: set[int] = set()
        for caption in dict.fromkeys(captions):
            own, best = int(owners[caption]), _best(scores[:, caption], k)
            wanted += [(image, caption) for image in dict.fromkeys([own, *best[:1]])]
            found.update([own, *best])
        pictures = _pictures(corpus, sorted(found), name, photographs, scenes)
        shown = _Shown(model, corpus, split, k, pictures)
        pairs = []
        for number, (image, caption) in enumerate(wanted, start=1):
            truth = None if grounding is None else grounding[caption]
            pairs.append(_pair(shown, int(t2i[caption]), image, caption, truth))
            if progress is not None:
                progress(number, len(wanted))
    different = len(dict.fromkeys(captions))
    counts = f"{_counted(corpus.n_images, 'image')}, {_counted(corpus.n_captions, 'caption')}"
    curves = [
        Curve("captions, by an image", i2t, corpus.n_captions),
        Curve("images, by a caption", t2i, corpus.n_images),
    ]
    last = min(curve.last for curve in curves)
    return Page(
        title=f"Where {model.kind.upper()} looks",
        pairs=pairs,
        facts=[("model", model.kind), ("split", f"{name}: {counts}"), ("shown", _counted(different, "caption"))],
        recall=[Curve(curve.name, curve.ranks, last) for curve in curves] if last > 1 else [],
        unseen=UNSEEN,
        unshared=UNSHARED,
        notes=notes_of(pairs),
    )


@dataclass(frozen=True)
class _Shown:
    """A model's split, how many results of each search are shown, and files of images by their numbers."""

    model: Matcher
    corpus: PrecomputedCorpus
    split: ScoredSplit
    k: int
    pictures: Mapping[int, Path]


def _pair(shown: _Shown, rank: int, image: int, caption: int, truth: Grounding | None) -> Pair:
    model, corpus, split = shown.model, shown.corpus, shown.split
    data, owners = corpus.data, corpus.image_of_caption
    regions = tokens_of(model, corpus.regions(np.array([image])))
    count = regions.features.shape[1] if regions.lengths is None else int(regions.lengths[0])
    boxes = None if regions.boxes is None else regions.boxes[0, :count].cpu().numpy()
    one, other = (side[torch.tensor([place])] for side, place in ((split.images, image), (split.captions, caption)))
    text, spans = data.captions[caption], corpus.spans(caption)
    explanation = Explanation.of(model, one, other, text, spans=spans, boxes=boxes)
    own = bool(image == owners[caption])
    if own:
        about, mark = f"caption {caption} with its own image: {_name(corpus, image)}", f"rank {rank + 1}"
    else:
        about, mark = f"caption {caption} with {_name(corpus, image)}, which the model finds first", "found first"
    return explanation.pair(
        shown.pictures.get(image),
        about=about,
        mark=mark,
        right=own and rank == 0,
        found=_found(shown, image, caption),
        key=(image, caption),
        is_other=not own,
        objects={} if truth is None or not own else explanation.rows.objects(truth),
    )


def _found(shown: _Shown, image: int, caption: int) -> dict[str, list[Result]]:
    """Results of the model for the caption, and for the image."""
    corpus, scores = shown.corpus, shown.split.scores
    owners, texts = corpus.image_of_caption, corpus.data.captions
    images = [
        Result(
            rank, float(scores[found, caption]), _name(corpus, found), bool(found == owners[caption]),
            shown.pictures.get(found), key=(found, caption),
        )
        for rank, found in enumerate(_best(scores[:, caption], shown.k), start=1)
    ]  # fmt: skip
    captions = [
        Result(
            rank, float(scores[image, found]), texts[found], bool(owners[found] == image), is_text=True,
            key=(image, found),
        )
        for rank, found in enumerate(_best(scores[image], shown.k), start=1)
    ]  # fmt: skip
    return {"Images found for this caption": images, "Captions found for this image": captions}


def _best(scores: NDArray[np.float32], k: int) -> list[int]:
    """The k best, of equal scores the lower index first."""
    best: list[int] = np.argsort(-scores, kind="stable")[:k].tolist()
    return best


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _name(corpus: PrecomputedCorpus, image: int) -> str:
    return f"image {image}" if corpus.data.ids is None else corpus.data.ids[image]


def _pictures(
    corpus: PrecomputedCorpus,
    images: Sequence[int],
    split: str,
    photographs: str | os.PathLike[str] | None,
    scenes: str | os.PathLike[str] | None,
) -> dict[int, Path]:
    """The files of images, as far as there are any."""
    data = corpus.data
    if photographs is not None:
        if data.ids is None:
            raise ValueError(f"{data.name}: its images have no names, SPLIT_ids.txt, by which their pictures are found")
        return dict(zip(images, find_pictures(photographs, [data.ids[image] for image in images]), strict=True))
    features: Any = data.features
    if isinstance(features, PictureFiles):
        return {image: features.files[data.feature_rows[image]] for image in images}
    if scenes is None:
        return {}
    own = {image: picture_path(scenes, split, image) for image in images}
    return own if all(path.is_file() for path in own.values()) else {}
