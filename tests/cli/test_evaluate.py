"""crossret evaluate and score: figures and scores of a model, of files and of ensembles, printed and written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from crossret.data import PrecomputedDataset
from crossret.data.corpus import PrecomputedCorpus
from crossret.evaluation import encode_dataset, five_fold, retrieval_metrics, score_matrix
from crossret.models.checkpoints import load_model
from crossret_kernels import maxsim_scores, scan_scores
from tests.cli.command import Cli


def scores_of(run: Path, data: Path, split: str = "test") -> NDArray[np.float32]:
    model, vocabulary = load_model(run / "best")
    return score_matrix(model, *encode_dataset(model, PrecomputedCorpus(PrecomputedDataset(data, split), vocabulary)))


@pytest.mark.parametrize("folds", [1, 5])
def test_figures_are_printed_and_written(crossret: Cli, data: Path, trained: Path, tmp_path: Path, folds: int) -> None:
    figures, scores = tmp_path / "figures.json", tmp_path / "scores.npy"
    options = ["--five-fold"] if folds == 5 else []
    assert crossret("evaluate", trained, data, "--output", figures, "--scores", scores, *options) == 0
    printed, contents = crossret.out, json.loads(figures.read_text())
    assert (contents["folds"], contents["members"]) == (folds, [str(trained)])
    assert "ensemble" not in printed
    assert f"{contents['rsum']:.1f}" in printed
    # Two images a fold: each caption's image is among the first five.
    assert (contents["t2i_r5"] == 100) is (folds == 5)
    kept = np.load(scores, allow_pickle=False)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept, scores_of(trained, data))
    assert crossret("evaluate", scores, data, *options) == 0
    assert crossret.out == printed


@pytest.mark.parametrize(("folds", "stored"), [(False, ()), (True, (0, 1))])
def test_an_ensemble_s_scores_are_the_means_of_its_members(
    crossret: Cli, data: Path, trained: Path, mhsan: Path, tmp_path: Path, stored: tuple[int, ...], folds: bool
) -> None:
    matrices = [scores_of(trained, data), scores_of(mhsan, data), np.random.default_rng(1).standard_normal((10, 50))]
    members = [trained, mhsan / "best", tmp_path / "2.npy"]
    for member in (*stored, 2):
        members[member] = tmp_path / f"{member}.npy"
        np.save(members[member], matrices[member])
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


def test_an_image_that_is_not_finite_is_named(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    features = np.repeat(np.load(data / "test_ims.npy"), 5, axis=0)
    features[15:20, 1] = np.inf
    np.save(tmp_path / "test_ims.npy", features)
    (tmp_path / "test_caps.txt").write_bytes((data / "test_caps.txt").read_bytes())
    err = crossret.refused("evaluate", trained, tmp_path, "--scores", tmp_path / "scores.npy")
    assert f"{tmp_path}/test_ims.npy: item 15 has features that are not finite in float32" in err
    assert err.startswith("crossret: image 3 has the score nan with caption 0: ")
    assert not (tmp_path / "scores.npy").exists()


def test_protocols_of_others_are_printed_and_written(
    crossret: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three images in place of MS-COCO's 5,000."""
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
    err = crossret.refused(*command, "eccv")
    assert f"{data}/test_ids.txt: no such file; --protocol eccv needs MS-COCO's ids" in err
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


@pytest.mark.parametrize(
    "options", [["--direction", "i2t", "--pooling", "lse", "--lambda-lse", "5", "--clip-slope", "0"], ["--sum-max"]]
)
def test_files_are_scored_with_their_options(crossret: Cli, tmp_path: Path, options: list[str]) -> None:
    rng = np.random.default_rng(0)
    regions, words = rng.standard_normal((3, 4, 8), np.float32), rng.standard_normal((5, 6, 8), np.float32)
    lengths = np.array([6, 1, 2, 3, 4])
    for name, array in (("regions", regions), ("words", words), ("lengths", lengths)):
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: tmp_path / f"{name}.npy" for name in ("regions", "words", "lengths", "scores")}
    sides = ["--regions", files["regions"], "--words", files["words"], "--word-lengths", files["lengths"]]
    assert crossret("score", *sides, "--output", files["scores"], "--normalize", *options) == 0
    arguments = (torch.from_numpy(regions), torch.from_numpy(words), None, lengths.tolist())
    if "--sum-max" in options:
        expected = maxsim_scores(*arguments, normalize=True)
    else:
        expected = scan_scores(*arguments, direction="i2t", pooling="lse", lambda_lse=5, clip_slope=0, normalize=True)
    np.testing.assert_allclose(np.load(files["scores"], allow_pickle=False), expected.numpy(), rtol=1e-6, atol=1e-6)


def test_scores_that_are_not_finite_are_written_with_a_warning(crossret: Cli, tmp_path: Path) -> None:
    words = np.ones((3, 2, 4))
    words[1, 0, 0] = 1e300
    np.save(tmp_path / "regions.npy", np.ones((2, 2, 4), np.float32))
    np.save(tmp_path / "words.npy", words)
    sides = ["--regions", tmp_path / "regions.npy", "--words", tmp_path / "words.npy"]
    assert crossret("score", *sides, "--output", tmp_path / "scores.npy") == 0
    warning = f"{tmp_path}/words.npy: item 1 has features that are not finite in float32"
    assert crossret.err == f"crossret: warning: {tmp_path}/scores.npy: not all scores are finite: {warning}\n"
    assert np.isfinite(np.load(tmp_path / "scores.npy")).all(0).tolist() == [True, False, True]


def test_a_model_scores_a_split(crossret: Cli, data: Path, mhsan: Path, tmp_path: Path) -> None:
    assert crossret("score", mhsan, data, "--split", "dev", "--output", tmp_path / "scores.npy") == 0
    assert crossret.out == f"{tmp_path}/scores.npy: scores of 10 images with 50 captions\n"
    scores = np.load(tmp_path / "scores.npy", allow_pickle=False)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, scores_of(mhsan, data, "dev"))
