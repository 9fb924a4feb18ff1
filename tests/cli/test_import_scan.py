"""crossret import-scan: a model directory of a published checkpoint, which the other commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("kind", "checkpoint", "shape"),
    [("scan", scan_checkpoint(), (4, 3, 6)), ("vse", vse_checkpoint(vse_modules(cnn=True)), (4, 6))],
)
def test_a_model_can_be_evaluated_and_searched(
    crossret: Cli, tmp_path: Path, kind: str, checkpoint: Any, shape: tuple[int, ...]
) -> None:
    VOCABULARY.save(tmp_path / "vocab.json")
    path = save(checkpoint, tmp_path / "model_best.pth.tar")
    assert crossret("import-scan", path, "--output", tmp_path / "model", "--vocabulary", tmp_path / "vocab.json") == 0
    numbers = sum(tensor.numel() for tensor in load_model(tmp_path / "model")[0].state_dict().values())
    assert crossret.out == f"{tmp_path}/model: {kind} of {numbers} numbers and 7 words\n"
    warning = f"crossret: warning: {path}: its CNN is left out" if kind == "vse" else ""
    assert crossret.err.startswith(warning) and crossret.err.count("\n") == bool(warning)
    np.save(tmp_path / "test_ims.npy", np.random.default_rng(0).standard_normal(shape, np.float32))
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
    assert crossret.refused(*arguments, *files[:2]).endswith("belong together: one is missing\n")
