"""crossret import-scan: a model directory of a published checkpoint, which the other commands take."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import ModuleType

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


def test_a_model_of_vse_reads_its_own_words_and_features(
    crossret: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("vocab")
    module.Vocabulary = type("Vocabulary", (), {"__module__": "vocab"})  # type: ignore[attr-defined]
    saved = module.Vocabulary()
    numbers = VOCABULARY.word2idx
    vars(saved).update(word2idx=numbers, idx2word={number: word for word, number in numbers.items()}, idx=len(numbers))
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "vocab", module)
        (tmp_path / "coco_vocab.pkl").write_bytes(pickle.dumps(saved, protocol=2))
    path = save(vse_checkpoint(vse_modules(cnn=True)), tmp_path / "model_best.pth.tar")
    assert (
        crossret("import-scan", path, "--output", tmp_path / "model", "--vocabulary", tmp_path / "coco_vocab.pkl") == 0
    )
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


class Program:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("was-here",)


def test_what_would_run_is_refused_in_one_line(crossret: Cli, tmp_path: Path) -> None:
    VOCABULARY.save(tmp_path / "vocab.json")
    path = save({"model": Program()}, tmp_path / "x.pth")
    assert crossret("import-scan", path, "--output", tmp_path / "model", "--vocabulary", tmp_path / "vocab.json") == 2
    assert crossret.err == f"crossret: {path}: refused, as it asks for posix.mkdir; nothing of it has been run\n"
    assert not (tmp_path / "model").exists()
