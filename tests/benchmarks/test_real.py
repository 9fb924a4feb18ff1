"""Real pictures of packages: how they are split, and the record's tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from benchmarks.real.pictures import Captioned, splits_of
from benchmarks.real.report import table


def save(file: Path, colour: tuple[int, int, int]) -> Path:
    Image.new("RGB", (4, 4), colour).save(file)
    return file


class Reds:
    """An encoder of one token, which is the same for reds that differ by less than ten, and else at right angles."""

    def encode_images(self, pictures: Sequence[Image.Image]) -> Any:
        tens: Any = [picture.getpixel((0, 0)) for picture in pictures]
        values = torch.eye(26)[[red // 10 for red, _, _ in tens]]
        return SimpleNamespace(values=values, lengths=[1] * len(pictures))


def test_splits_share_no_near_doubles(tmp_path: Path) -> None:
    """Three clusters of two, one by colours and two by sentences, and six pictures alone."""
    reds = [0, 1, *range(10, 110, 10)]
    sentences = [f"picture {number}" for number in range(10)] + ["picture 2.", "Picture 3"]
    pictures = [
        Captioned(save(tmp_path / f"{number:02}.png", (red, 0, 0)), sentence)
        for number, (red, sentence) in enumerate(zip(reds, sentences, strict=True))
    ]
    encoder: Any = Reds()
    splits = splits_of(pictures, encoder, 4)
    assert [len(splits[split]) for split in ("test", "dev")] == [4, 2]
    place = {own.file.stem: split for split, part in splits.items() for own in part}
    for some, other in (("00", "01"), ("02", "10"), ("03", "11")):
        assert {place.get(some), place.get(other)} in ({"train"}, {"test", None}, {"dev", None})
    assert splits_of(pictures, encoder, 4) == splits


def test_the_record_s_table() -> None:
    run = {f"{way}_{recall}": 10.0 for way in ("i2t", "t2i") for recall in ("r1", "r5", "r10")}
    runs = [{**run, "training_seconds": 4.0}, {**run, "i2t_r1": 14.0, "training_seconds": 6.0}]
    entry = {"model": "scan", "captions": "tokens", "loss": "infonce", "runs": runs}
    stamps_found = {"counts": {"test": 50, "train": 1000}, "trainings": [entry]}
    found = {"machine": {"cpu": "A CPU"}, "date": "2026-01-01", "seeds": 2, "packages": ["x 1"]}
    printed = table({**found, "collections": {"stamps": stamps_found}})
    assert "**stamps**: 50 to test, 1,000 to train; chance 2.0." in printed
    same = "10.0 ± 0.0"
    assert f"| scan | tokens | infonce | 12.0 ± 2.0 / {same} / {same} | {same} / {same} / {same} | 5 |" in printed
