"""A perturbed data directory: which captions are other ones, what is linked, and what is never left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from crossret.data import PrecomputedDataset, perturbing, render_scenes, tokenize
from crossret.data.perturbing import Perturbed, perturb_data


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scenes")
    render_scenes(directory, train=4, dev=2, test=1, workers=1)
    return directory


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def parts(directory: Path, split: str = "train") -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in (directory / f"{split}_grounding.jsonl").read_text().splitlines()]


def test_words_are_shuffled(scenes: Path, tmp_path: Path) -> None:
    seen = []
    done = perturb_data(scenes, tmp_path / "one", seed=5, progress=lambda *counts: seen.append(counts))
    assert done == Perturbed(captions=20, changed=20, kept=0)
    assert (seen[0], seen[-1]) == ((1, 20), (20, 20))
    before, after = (PrecomputedDataset(directory, "train").captions for directory in (scenes, tmp_path / "one"))
    assert [sorted(tokenize(caption)) for caption in before] == [sorted(tokenize(caption)) for caption in after]
    perturb_data(scenes, tmp_path / "same", seed=5)
    perturb_data(scenes, tmp_path / "other", seed=6)
    one, same, other = ((tmp_path / name / "train_caps.txt").read_bytes() for name in ("one", "same", "other"))
    assert one == same != other


@pytest.mark.parametrize(
    ("drop", "tags"), [("noun", {"NOUN"}), ("verb", {"AUX"}), ("adjective", {"ADJ", "ADV"}), ("preposition", {"ADP"})]
)
def test_scenes_know_their_parts_of_speech(scenes: Path, tmp_path: Path, drop: str, tags: set[str]) -> None:
    done = perturb_data(scenes, tmp_path / "new", drop=drop)
    before, after = (PrecomputedDataset(directory, "train").captions for directory in (scenes, tmp_path / "new"))
    changed = 0
    for old, new, truth in zip(before, after, parts(scenes), strict=True):
        left = [word for word, tag in zip(truth["words"], truth["pos"], strict=True) if tag not in tags]
        assert tokenize(new) == left
        assert (new == old) is (left == truth["words"]), "what is not changed stays as it was written"
        changed += new != old
    assert done == Perturbed(20, changed, 0)
    assert changed > 0


def test_the_rest_is_linked(scenes: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "new"
    perturb_data(scenes, output, drop="noun", split="dev")
    left = {"dev_caps.txt", "dev_grounding.jsonl", "scenes.json"}
    assert names(output) == (names(scenes) - left) | {"dev_caps.txt", "perturbation.json"}
    for name in names(scenes) - left:
        assert (output / name).samefile(scenes / name)
    assert json.loads((output / "perturbation.json").read_text()) == {
        "split": "dev",
        "drop": "noun",
        "tags": "dev_grounding.jsonl",
        "seed": None,
        "captions": 10,
        "changed": 10,
        "kept": 0,
    }
    with pytest.raises(FileExistsError):
        render_scenes(output, train=1, dev=1, test=1, workers=1)


def plain(directory: Path, captions: list[str]) -> Path:
    directory.mkdir()
    np.save(directory / "train_ims.npy", np.zeros((1, 2, 3), np.float32))
    (directory / "train_caps.txt").write_text("\n".join(captions), "utf-8")
    return directory


def nouns(model: str) -> Callable[[Iterable[list[str]]], Iterator[list[str]]]:
    """Of the model "model": to it every word is a noun but "a" and one that cannot be seen."""
    assert model == "model"
    return lambda captions: iter(
        [["DET" if word in ("a", "\u200b") else "NOUN" for word in words] for words in captions]
    )


def test_a_caption_that_nothing_would_be_left_of_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbing, "load_tagger", nouns)
    data = plain(tmp_path / "data", ["A Dog", "Dogs dogs", "a", "\u200b dog", "Dog"])
    monkeypatch.setattr(perturbing, "DEFAULT_MODEL", "model")
    assert perturb_data(data, tmp_path / "new", drop="noun") == Perturbed(captions=5, changed=1, kept=3)
    assert PrecomputedDataset(tmp_path / "new", "train").captions == ["a", "Dogs dogs", "a", "\u200b dog", "Dog"]


def test_a_grounding_of_other_words_is_named(scenes: Path, tmp_path: Path) -> None:
    data = plain(tmp_path / "data", ["a dog"] * 5)
    (data / "train_grounding.jsonl").write_bytes((scenes / "train_grounding.jsonl").read_bytes())
    with pytest.raises(ValueError, match=r"train_grounding\.jsonl: not the words of train_caps\.txt"):
        perturb_data(data, tmp_path / "new", drop="noun")
    assert not (tmp_path / "new").exists()
