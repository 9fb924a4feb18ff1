"""crossret import-scan: a model directory of a published checkpoint, which the other commands take."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crossret.models.checkpoints import load_model
from tests.cli.command import Cli
from tests.compat.checkpoints.published import (
    VOCABULARY,
    mhsan_checkpoint,
    save,
    scan_checkpoint,
    vse_checkpoint,
    vse_modules,
    word_files,
)


def test_a_model_of_scan_can_be_evaluated(crossret: Cli, tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "vocab.json")
    path = save(scan_checkpoint(), tmp_path / "model_best.pth.tar")
    assert crossret("import-scan", path, "--output", tmp_path / "model", "--vocabulary", tmp_path / "vocab.json") == 0
    numbers = sum(tensor.numel() for tensor in load_model(tmp_path / "model")[0].state_dict().values())
    assert crossret.out == f"{tmp_path}/model: scan of {numbers} numbers and 7 words\n"
    rng = np.random.default_rng(0)
    np.save(tmp_path / "test_ims.npy", rng.standard_normal((4, 3, 6), np.float32))
    (tmp_path / "test_caps.txt").write_text("a dog\na cat\na mat\nno dog\n" * 5)
    assert crossret("evaluate", tmp_path / "model", tmp_path) == 0
    assert "4 images" in crossret.out


def test_a_model_of_vse_reads_its_own_features(crossret: Cli, tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "vocab.json")
    path = save(vse_checkpoint(vse_modules(cnn=True)), tmp_path / "model_best.pth.tar")
    assert crossret("import-scan", path, "--output", tmp_path / "model", "--vocabulary", tmp_path / "vocab.json") == 0
    assert crossret.out.startswith(f"{tmp_path}/model: vse of ")
    assert crossret.err.startswith(f"crossret: warning: {path}: its CNN is left out")
    assert crossret.err.count("\n") == 1
    np.save(tmp_path / "test_ims.npy", np.random.default_rng(0).standard_normal((4, 6), np.float32))
    (tmp_path / "test_caps.txt").write_text("a dog\na cat\na mat\nno dog\n" * 5)
    assert crossret("evaluate", tmp_path / "model", tmp_path) == 0, crossret.err
    assert "4 images" in crossret.out
    assert crossret("search", tmp_path / "model", tmp_path, "--caption", "a dog", "-k", "2") == 0, crossret.err


def test_a_model_of_mhsan_takes_its_words(crossret: Cli, tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "vocab.json")
    path, (table, dictionary) = save(mhsan_checkpoint(), tmp_path / "x.pth"), word_files(tmp_path)
    files = ["--word-table", table, "--dictionary", dictionary]
    arguments = ["import-scan", path, "--output", tmp_path / "model", "--vocabulary", tmp_path / "vocab.json"]
    assert crossret(*arguments, *files, "--bidirectional") == 0
    assert load_model(tmp_path / "model")[0].config.bidirectional
    assert crossret(*arguments, *files[:2]) == 2
    assert crossret.err == "crossret: --word-table and --dictionary belong together: one is missing\n"
