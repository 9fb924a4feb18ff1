"""crossret evaluate: the figures of a model, of files of scores and of ensembles, printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crossret.data import PrecomputedDataset
from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation import encode_dataset, five_fold, retrieval_metrics, score_matrix
from crossret.models.checkpoints import load_model
from tests.cli.command import Cli


def scores_of(run: Path, data: Path) -> NDArray[np.float32]:
    model, vocabulary = load_model(run / "best")
    return score_matrix(model, *encode_dataset(model, PrecomputedCorpus(PrecomputedDataset(data, "test"), vocabulary)))


@pytest.mark.parametrize("five_fold", [False, True])
def test_evaluate_prints_and_writes_the_figures(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, five_fold: bool
) -> None:
    figures = tmp_path / "figures.json"
    assert crossret("evaluate", trained, data, "--output", figures, *(["--five-fold"] if five_fold else [])) == 0
    contents = json.loads(figures.read_text())
    assert contents["folds"] == (5 if five_fold else 1)
    assert contents["members"] == [str(trained)]
    assert "ensemble" not in crossret.out
    assert f"{contents['rsum']:.1f}" in crossret.out
    # Two images a fold: each caption's image is among the first five.
    assert (contents["t2i_r5"] == 100) is five_fold


def test_evaluate_keeps_the_scores(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    assert crossret("evaluate", trained, data, "--scores", tmp_path / "scores.npy") == 0
    printed = crossret.out
    scores = np.load(tmp_path / "scores.npy", allow_pickle=False)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, scores_of(trained, data))
    assert crossret("evaluate", tmp_path / "scores.npy", data) == 0
    assert crossret.out == printed


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize("stored", [(), (0, 1, 2)])
def test_an_ensemble_s_scores_are_the_means_of_its_members(
    crossret: Cli, data: Path, trained: Path, mhsan: Path, tmp_path: Path, stored: tuple[int, ...], folds: bool
) -> None:
    other = np.random.default_rng(1).standard_normal((10, 50))
    matrices = [scores_of(trained, data), scores_of(mhsan, data), other]
    np.save(tmp_path / "2.npy", other)
    members = [trained, mhsan / "best", tmp_path / "2.npy"]
    for member in stored:
        np.save(tmp_path / f"{member}.npy", matrices[member])
        members[member] = tmp_path / f"{member}.npy"
    written = ["--scores", tmp_path / "mean.npy", "--output", tmp_path / "figures.json"]
    others = ["--ensemble", members[1], "--ensemble", members[2]]
    assert crossret("evaluate", members[0], data, *others, *written, *(["--five-fold"] if folds else [])) == 0
    assert "ensemble of 3" in " ".join(crossret.out.split())
    mean = np.load(tmp_path / "mean.npy", allow_pickle=False)
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, np.mean(matrices, axis=0), rtol=1e-6, atol=1e-6)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["members"] == [str(member) for member in members]
    expected = (five_fold if folds else retrieval_metrics)(mean, PrecomputedDataset(data, "test").image_of_caption)
    assert {name: figures[name] for name in expected.as_dict()} == expected.as_dict()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_image_that_is_not_finite_is_named(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, value: float
) -> None:
    features = np.repeat(np.load(data / "test_ims.npy"), 5, axis=0)
    features[15:20, 1] = value
    np.save(tmp_path / "test_ims.npy", features)
    (tmp_path / "test_caps.txt").write_bytes((data / "test_caps.txt").read_bytes())
    assert crossret("evaluate", trained, tmp_path, "--scores", tmp_path / "scores.npy") == 2
    assert f"{tmp_path}/test_ims.npy: item 15 has features that are not finite in float32" in crossret.err
    assert crossret.err.startswith("crossret: image 3 has the score nan with caption 0: ")
    assert crossret.err.count("\n") == 1
    assert not (tmp_path / "scores.npy").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/nan.npy", "{data}"], "nan.npy: the score in row 3, column 7 is nan, not finite in float32"),
        (["{trained}", "{data}", "--ensemble", "{tmp}/few.npy"], "few.npy: 10 images and 50 captions have scores of"),
        (["{tmp}/few.npy", "{data}", "--device", "cpu"], "--device is for models, not for files of scores"),
        (["{trained}", "{data}", "--scores", "{tmp}/absent/y.npy"], "no directory {tmp}/absent"),
        (
            ["{trained}", "{data}", "--scores", "{tmp}/y", "--output", "{tmp}/y"],
            "--scores and --output name the same file",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_scored(
    crossret: Cli,
    data: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    def scored(*_: object, **__: object) -> None:
        raise AssertionError("scored")

    monkeypatch.setattr("crossret.evaluation.encode_dataset", scored)
    scores = np.zeros((10, 50), np.float32)
    np.save(tmp_path / "few.npy", scores[:9])
    scores[3, 7] = np.nan
    np.save(tmp_path / "nan.npy", scores)
    places = {"data": data, "trained": trained, "tmp": tmp_path}
    assert crossret("evaluate", *(argument.format_map(places) for argument in arguments)) == 2
    assert message.format_map(places) in crossret.err
    assert crossret.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.npy", "nan.npy"]


def test_protocols_of_others_are_printed_and_written(
    crossret: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three images in place of MS-COCO's 5,000."""
    pytest.importorskip("fico_itr")
    monkeypatch.setattr(pytest.importorskip("eccv_caption.metrics"), "CUR_DIR", str(tmp_path))
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "test_ims.npy", np.zeros((3, 2, 4), np.float32))
    (data / "test_caps.txt").write_text("a dog\n" * 15)
    scores = np.random.default_rng(1).standard_normal((3, 15)).astype(np.float32)
    np.save(tmp_path / "scores.npy", scores)
    command = ["evaluate", tmp_path / "scores.npy", data, "--output", tmp_path / "x.json", "--protocol"]
    assert crossret(*command, "fico_itr") == 0
    figures = json.loads((tmp_path / "x.json").read_text())
    assert figures["fico_itr"]["R@5"] == pytest.approx({"i2t": figures["i2t_r5"], "t2i": figures["t2i_r5"]})
    assert "mAP" not in figures["fico_itr"]
    assert crossret(*command, "eccv") == 2
    assert f"{data}/test_ids.txt: no such file; --protocol eccv needs MS-COCO's ids" in crossret.err
    (data / "test_ids.txt").write_text("40\n7\n391\n")
    (data / "test_caption_ids.txt").write_text("".join(f"{number}\n" for number in range(15)))
    own = {image: list(range(5 * place, 5 * place + 5)) for place, image in enumerate((40, 7, 391))}
    for name in ("original", "cxc", "eccv"):
        (data / f"{name}_image_to_caption.json").write_text(json.dumps(own))
        owners = {caption: [image] for image, captions in own.items() for caption in captions}
        (data / f"{name}_caption_to_image.json").write_text(json.dumps(owners))
    np.save(data / "coco_test_ids.npy", np.arange(15))
    assert crossret(*command, "eccv") == 0, crossret.err
    figures = json.loads((tmp_path / "x.json").read_text())
    assert figures["eccv"]["cxc_r5"] == pytest.approx({"i2t": figures["i2t_r5"], "t2i": figures["t2i_r5"]})
    assert f"{figures['eccv']['eccv_map_at_r']['i2t']:.1f}" in crossret.out
