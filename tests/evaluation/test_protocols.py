"""Protocols of other packages: their figures against the definitions, and what is not theirs to measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossret.evaluation import retrieval_metrics
from crossret.evaluation.protocols import PLAUSIBLE, EccvCaption, FicoItr, _best

IMAGES, CAPTIONS = [40, 7, 391], [11, 12, 21, 22, 31, 32]
# Of every image the captions that are its own, and those of others that people found to match.
OWN = {40: [11, 12], 7: [21, 22], 391: [31, 32]}
MORE = {40: [11, 12, 31], 7: [21, 22]}
SCORES = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


def inverse(truth: dict[int, list[int]]) -> dict[int, list[int]]:
    captions = sorted({caption for own in truth.values() for caption in own})
    return {caption: [image for image, own in truth.items() if caption in own] for caption in captions}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package with three images in place of MS-COCO's 5,000; and plausible matches beside them."""
    metrics = pytest.importorskip("eccv_caption.metrics")
    monkeypatch.setattr(metrics, "CUR_DIR", str(tmp_path))
    (tmp_path / "data").mkdir()
    for name, truth in (("original", OWN), ("cxc", MORE | {391: [31]}), ("eccv", MORE)):
        (tmp_path / f"data/{name}_image_to_caption.json").write_text(json.dumps(truth))
        (tmp_path / f"data/{name}_caption_to_image.json").write_text(json.dumps(inverse(truth)))
    np.save(tmp_path / "data/coco_test_ids.npy", CAPTIONS)
    for name, truth in zip(PLAUSIBLE, (OWN, inverse(OWN)), strict=True):
        (tmp_path / name).write_text(json.dumps(truth))
    return tmp_path


def by_hand(ranking: list[int], right: list[int]) -> dict[str, float]:
    """Of one query mAP@R's part (Musgrave et al., 2020), R-Precision and R@1."""
    hits = [item in right for item in ranking[: len(right)]]
    precisions = [sum(hits[: place + 1]) / (place + 1) * hit for place, hit in enumerate(hits)]
    return {
        "eccv_map_at_r": sum(precisions) / len(right),
        "eccv_rprecision": sum(hits) / len(right),
        "eccv_r1": float(hits[0]),
    }


def test_eccv_s_figures_are_those_of_the_definitions(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scores = SCORES.copy()
    scores[1] = scores[1, 0]  # equal scores: the lower index comes first
    figures = EccvCaption(list(map(str, IMAGES)), list(map(str, CAPTIONS)), small).figures(scores)
    assert set(figures) == {"cxc_r1", "cxc_r5", "cxc_r10", "eccv_map_at_r", "eccv_rprecision", "eccv_r1", "pmrp"}
    for way, of, queries, items, truth in (
        ("i2t", scores, IMAGES, CAPTIONS, MORE), ("t2i", scores.T, CAPTIONS, IMAGES, inverse(MORE)),
    ):  # fmt: skip
        ranking = {
            query: [items[item] for item in np.argsort(-row, kind="stable")]
            for query, row in zip(queries, of, strict=True)
        }
        each = [by_hand(ranking[query], right) for query, right in truth.items()]
        for name in each[0]:
            assert figures[name][way] == pytest.approx(100 * np.mean([part[name] for part in each])), name
        cxc = MORE | {391: [31]}
        matches = cxc if way == "i2t" else inverse(cxc)
        for k in (1, 5):
            found = [bool(set(ranking[query][:k]) & set(right)) for query, right in matches.items()]
            assert figures[f"cxc_r{k}"][way] == pytest.approx(100 * np.mean(found))
    assert capfd.readouterr().err == ""
    assert "pmrp" not in EccvCaption(list(map(str, IMAGES)), list(map(str, CAPTIONS))).figures(scores)


def test_of_equal_scores_the_lower_index_comes_first() -> None:
    scores = np.random.default_rng(0).integers(0, 4, 300).astype(np.float32)
    assert _best(scores, 100) == sorted(range(300), key=lambda item: (-scores[item], item))[:100]


@pytest.mark.parametrize(
    ("images", "captions", "message"),
    [
        (["40", "7", "40"], CAPTIONS, r"image_ids\[2\]: 40 is not of MS-COCO's 5K test, or is there twice"),
        (["40", "a.jpg", "7"], CAPTIONS, r"image_ids\[1\]: a.jpg is not of"),
        (["40", "7"], CAPTIONS, "image_ids: 391 of MS-COCO's 5K test is not among the 2"),
        (IMAGES, [11, 12, 21, 22, 31, 3], r"caption_ids\[5\]: 3 is not of"),
    ],
)
def test_ids_that_are_not_the_protocol_s_are_named(small: Path, images: Any, captions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EccvCaption(list(map(str, images)), list(map(str, captions)))


@pytest.mark.parametrize("owners", [[0, 0, 1, 1, 2, 2], [2, 0, 1, 1, 0, 2], [0, 0, 0, 1, 2, 2], [0, 1, 2]])
def test_fico_s_figures_are_those_of_the_definitions(owners: list[int]) -> None:
    pytest.importorskip("fico_itr")
    images, scores = np.array(owners), SCORES[:, : len(owners)]
    labels = np.array([[1, 0], [1, 1], [0, 1]])
    figures = FicoItr(images, labels).figures(scores)
    expected = retrieval_metrics(scores, images)
    for way, part in (("i2t", expected.i2t), ("t2i", expected.t2i)):
        for name, value in (("R@1", part.r1), ("R@5", part.r5), ("MeanR", part.meanr)):
            assert figures[name][way] == pytest.approx(value), (name, way)
    precisions = []
    for image, row in enumerate(scores):
        right = (labels[images[np.argsort(-row)]] & labels[image]).any(1)
        precisions.append((right.cumsum() / np.arange(1, len(right) + 1))[right].mean())
    assert figures["mAP"]["i2t"] == pytest.approx(100 * np.mean(precisions))
    assert "mAP" not in FicoItr(images).figures(scores)
    with pytest.raises(ValueError, match="labels: of 2 images, but there are 3"):
        FicoItr(images, labels[:2])


@pytest.mark.parametrize(("package", "made"), [("eccv_caption", EccvCaption), ("fico_itr", FicoItr)])
def test_without_the_package_it_says_what_to_install(package: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"needs {package}; .*pip install 'crossret\[protocols\]'"):
        made(np.zeros(1, np.int64), np.zeros(1))
