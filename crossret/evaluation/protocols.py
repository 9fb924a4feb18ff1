"""Protocols of other packages over the scores of all images with all captions: the extra ``protocols``."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Figures = dict[str, dict[str, float]]
"""Figures by name, then "i2t" and "t2i", in percent but for ranks."""

_RECALLS = (1, 5, 10)
PLAUSIBLE = ("pm_image_to_caption.json", "pm_caption_to_image.json")


class RetrievalProtocol(Protocol):
    """Another way to measure a split, made ready before there are scores."""

    def figures(self, scores: NDArray[np.floating]) -> Figures:
        """The figures of scores (n_images, n_captions), higher being better."""


class EccvCaption:
    """ECCV Caption and CxC, on MS-COCO's 5,000 test images, by the package ``eccv_caption``.

    ECCV Caption (Chun et al., ECCV 2022) has mAP@R, R-Precision and R@1 over captions and images that people found to
    match as well; CxC (Parekh et al., EACL 2021) R@K. PMRP, R-Precision over plausible matches (Chun et al., CVPR
    2021), is there with its two files, which the package tells where to get.

    Args:
        image_ids: MS-COCO's id of every image.
        caption_ids: the id of every caption's annotation, Karpathy's ``sentid``.
        plausible: a directory of ``PLAUSIBLE``; None leaves PMRP out.

    Raises:
        ValueError: ``eccv_caption`` is not installed, or ids are not those of the protocol, each once; names one.
    """

    def __init__(self, image_ids: Sequence[str], caption_ids: Sequence[str], plausible: Path | None = None) -> None:
        package = _imported("eccv_caption")
        self._metrics = package.Metrics(None if plausible is None else str(plausible))
        truth = self._metrics.coco_gts
        self._images = _checked("image_ids", image_ids, truth["i2t"])
        self._captions = _checked("caption_ids", caption_ids, truth["t2i"])

    def figures(self, scores: NDArray[np.floating]) -> Figures:
        """Figures of the protocol: "cxc_r1", …, "eccv_map_at_r", "eccv_rprecision", "eccv_r1", "pmrp"."""
        metrics = self._metrics
        truths = [metrics.eccv_gts, metrics.cxc_gts, *([metrics.pm_gts] if metrics.pm_gts else [])]
        found = {}
        for way, of, queries, items in (
            ("i2t", scores, self._images, self._captions),
            ("t2i", scores.T, self._captions, self._images),
        ):
            longest = max(_RECALLS[-1], *(len(matches) for truth in truths for matches in truth[way].values()))
            found[way] = {
                query: [items[item] for item in _best(row, longest)] for query, row in zip(queries, of, strict=True)
            }
        with redirect_stderr(io.StringIO()):  # its progress bars
            figures = {f"cxc_r{k}": metrics.cxc_recalls(found, "all", K=k) for k in _RECALLS}
            figures |= metrics.eccv_metrics(found, "all")
            if metrics.pm_gts:
                figures["pmrp"] = metrics.pmrp(found, "all")
        return {name: {way: 100 * float(part[way]) for way in ("i2t", "t2i")} for name, part in figures.items()}


class FicoItr:
    """FiCo-ITR's measures (Williams-Lekuona and Cosma, 2024), by the package ``fico_itr``.

    Instances have R@K and ranks, where the package decides between equal scores; categories have mAP: what shares a
    label with the query is right.

    Args:
        image_of_caption: (n_captions,) integers, the image that each caption describes; every image has a caption.
        labels: (n_images,) integers, a category an image, or (n_images, n) zeros and ones; None leaves categories out.

    Raises:
        ValueError: ``fico_itr`` is not installed, or there are not as many labels as images.
    """

    def __init__(self, image_of_caption: NDArray[np.integer], labels: NDArray[Any] | None = None) -> None:
        self._package = _imported("fico_itr")
        self._order = np.argsort(image_of_caption, kind="stable")
        counts = np.bincount(image_of_caption)
        if labels is not None and len(labels) != len(counts):
            raise ValueError(f"labels: of {len(labels)} images, but there are {len(counts)}")
        self._labels = labels
        uniform = len(set(counts.tolist())) == 1
        self._captions: Any = int(counts[0]) if uniform else image_of_caption[self._order].tolist()

    def figures(self, scores: NDArray[np.floating]) -> Figures:
        """Figures of the protocol: "R@1", …, "MedianR", "MeanR" and, with labels, "mAP"."""
        ordered = scores[:, self._order]
        ways = self._package.instance_retrieval(ordered, captions_per_image=self._captions)
        figures = {name: {"i2t": float(ways[0][name]), "t2i": float(ways[1][name])} for name in ways[0]}
        if self._labels is not None:
            means = self._package.category_retrieval(ordered, self._labels, captions_per_image=self._captions)
            figures["mAP"] = {way: 100 * float(mean) for way, mean in zip(("i2t", "t2i"), means, strict=True)}
        return figures


def _imported(name: Literal["eccv_caption", "fico_itr"]) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on optional packages that are missing
            if name == "eccv_caption":
                import eccv_caption as package
            else:
                import fico_itr as package
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"this protocol needs {name}; install the extra: pip install 'crossret[protocols]'") from error
    return package


def _checked(what: str, ids: Sequence[str], expected: Iterable[int]) -> list[int]:
    """The ids as numbers, which are the expected ones, each once."""
    wanted, numbers = set(expected), []
    for place, name in enumerate(ids):
        number = int(name) if name.isascii() and name.isdigit() else -1
        if number not in wanted:
            raise ValueError(f"{what}[{place}]: {name} is not of MS-COCO's 5K test, or is there twice")
        wanted.remove(number)
        numbers.append(number)
    if wanted:
        raise ValueError(f"{what}: {min(wanted)} of MS-COCO's 5K test is not among the {len(numbers)}")
    return numbers


def _best(scores: NDArray[np.floating], k: int) -> list[int]:
    """The items with the k greatest scores, greatest first; of equal scores the lower index."""
    k = min(k, len(scores))
    found = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    order: list[int] = found[np.argsort(-scores[found], kind="stable")][:k].tolist()
    return order
