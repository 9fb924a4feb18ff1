"""Scenes and tiny models of every family, once a session; the library keeps to folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("transformers", reason="encoders are those of transformers")

from crossret.data import render_scenes
from tests.extraction.models import PICTURE_MODELS, save_bert, save_pictures_model, save_two_towers


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """What is no folder is looked for in the cache alone."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes with features, and files that name the pictures of their captions, five each."""
    directory = tmp_path_factory.mktemp("scenes")
    render_scenes(directory, train=12, dev=4, test=4, seed=0, workers=1)
    for split in ("train", "dev", "test"):
        captions = iter((directory / f"{split}_caps.txt").read_text().splitlines())
        pictures = sorted((directory / "images" / split).iterdir())
        lines = [f"{path.name}#{number}\t{next(captions)}\n" for path in pictures for number in range(5)]
        (directory / f"{split}.tsv").write_text("".join(lines))
    return directory


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model by its kind, made when it is first asked for."""
    directory, made = tmp_path_factory.mktemp("models"), {}

    def folder(kind: str) -> Path:
        if kind not in made:
            if kind in PICTURE_MODELS:
                made[kind] = save_pictures_model(kind, directory)
            else:
                made[kind] = save_bert(directory) if kind == "bert" else save_two_towers(kind, directory)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def pictures() -> list[Image.Image]:
    """Of odd sizes, upright, wide and square."""
    random = np.random.default_rng(0)
    sizes = ((37, 53), (61, 40), (43, 43))
    return [Image.fromarray(random.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in sizes]
