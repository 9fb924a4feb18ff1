"""`crossret.load` and `Retriever`: all models, every way of giving images, folders, the Hub's habits, explanations."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from PIL import Image

import crossret
from crossret.data.boxes import grid_boxes
from crossret.data.named_encoder import NamedEncoder
from crossret.data.vocabulary import Vocabulary
from crossret.models import MODELS
from crossret.models.attention import AttentionMap
from crossret.retriever import Retriever
from tests.models.batch import BOXES, FEATURES, REGION_LENGTHS, items, make

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ["dog", "cat", "mat", "on", "the", "a", "sits"]
CAPTIONS = ["a dog sits on the mat", "the cat", "a mat on a dog"]


def retriever(kind: str = "scan", **fields: Any) -> Retriever:
    return Retriever(make(kind, **fields), Vocabulary(WORDS))


@pytest.mark.parametrize("kind", MODELS)
def test_there_and_back_through_a_folder(kind: str, tmp_path: Path) -> None:
    ours = retriever(kind)
    ours.save_pretrained(tmp_path / "model")
    loaded = crossret.load(tmp_path / "model")
    assert loaded.model.config == ours.model.config
    scores = loaded.similarity(FEATURES, CAPTIONS)
    assert scores.shape == (3, 3)
    assert not scores.requires_grad
    assert torch.equal(scores, ours.similarity(FEATURES, CAPTIONS))
    for query, queries, corpus in (("caption", CAPTIONS, FEATURES), ("image", FEATURES, CAPTIONS)):
        found = loaded.search(queries, corpus, k=2)
        ranked = (scores.T if query == "caption" else scores).sort(dim=1, descending=True, stable=True)
        torch.testing.assert_close(found.scores, ranked.values[:, :2])
        assert torch.equal(found.indices, ranked.indices[:, :2])
    encoded = loaded.encode_images(FEATURES), loaded.encode_text(CAPTIONS)
    assert torch.equal(loaded.similarity(*encoded), scores)
    assert torch.equal(loaded.search(FEATURES, encoded[1]).indices, loaded.search(*encoded, query="image").indices)
    assert torch.equal(loaded.search(encoded[1], FEATURES).scores, loaded.search(CAPTIONS, encoded[0]).scores)
    again = loaded.search(*encoded, query="image")
    assert torch.equal(again.indices, scores.sort(dim=1, descending=True, stable=True).indices)


def test_images_of_every_form_are_the_same(tmp_path: Path) -> None:
    ours = retriever("sman")
    expected = ours.similarity(ours.model.encode_images(FEATURES, REGION_LENGTHS), CAPTIONS)
    listed = items(FEATURES, REGION_LENGTHS)
    np.save(tmp_path / "three.npy", FEATURES.numpy())
    for images, lengths in (
        (FEATURES, REGION_LENGTHS), (FEATURES.numpy(), REGION_LENGTHS), (listed, None),
        ([item.numpy() for item in listed], None), (tmp_path / "three.npy", REGION_LENGTHS),
    ):  # fmt: skip
        for batch_size in (2, 128):
            encoded = ours.encode_images(images, lengths, batch_size=batch_size)
            assert torch.equal(encoded.lengths, REGION_LENGTHS)
            torch.testing.assert_close(ours.similarity(encoded, CAPTIONS), expected)
    located = ours.model.encode_images(FEATURES, REGION_LENGTHS, BOXES).sequences
    for given in (BOXES, BOXES.numpy()):
        boxes = ours.encode_images(FEATURES, REGION_LENGTHS, boxes=given, batch_size=2)
        torch.testing.assert_close(boxes.sequences, located)
    for empty in ([], FEATURES[:0]):
        with pytest.raises(ValueError, match="images: there are none"):
            ours.encode_images(empty)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        ours.encode_images(FEATURES, batch_size=0)


def test_of_a_split_on_the_disk_padding_is_not_read(tmp_path: Path) -> None:
    ours = retriever()
    np.save(tmp_path / "test_ims.npy", FEATURES.numpy())
    np.save(tmp_path / "test_lengths.npy", REGION_LENGTHS.numpy())
    expected = ours.encode_images(FEATURES, REGION_LENGTHS)
    assert torch.equal(ours.encode_images(tmp_path / "test_ims.npy").lengths, expected.lengths)
    found = ours.search("a dog", str(tmp_path / "test_ims.npy"))
    assert torch.equal(found.scores, ours.search("a dog", expected).scores)
    np.save(tmp_path / "test_lengths.npy", REGION_LENGTHS.numpy() + 4)
    with pytest.raises(ValueError, match=r"test_lengths.npy: item 0 has length"):
        ours.encode_images(tmp_path / "test_ims.npy")


def test_text_is_what_the_vocabulary_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = retriever()
    encoded = ours.encode_text("A dog, unheard of!")
    tokens = torch.tensor([ours.vocabulary.encode("A dog, unheard of!")])
    expected = ours.model.encode_captions(tokens, torch.tensor([tokens.shape[1]]))
    torch.testing.assert_close(encoded.sequences, expected.sequences)
    assert ours.search("a dog", FEATURES, k=1).indices.shape == (1, 1)
    # Whatever files there are, and longer than the name of one can be.
    monkeypatch.chdir(tmp_path)
    Path("dog").mkdir()
    for caption in ("dog", "a dog " * 60):
        assert torch.equal(ours.search(caption, FEATURES).scores, ours.search([caption], FEATURES).scores)
        assert torch.equal(ours.search(FEATURES, "a " + caption).scores, ours.search(FEATURES, ["a " + caption]).scores)
    with pytest.raises(ValueError, match="query must be one of caption, image, not 'text'"):
        ours.search(["a dog"], FEATURES, query="text")
    with pytest.raises(ValueError, match="captions: there are none"):
        ours.encode_text([])
    with pytest.raises(ValueError, match=r"captions\[1\]: the caption is empty"):
        ours.encode_text(["a dog", " "])
    texts: Any = [3]
    with pytest.raises(TypeError, match=r"captions\[0\] must be a text, not int"):
        ours.encode_text(texts)


def test_pictures_are_read_through_a_backbone(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    with pytest.raises(ValueError, match=r"red.png: pictures are read by a model with a backbone, .* this scan reads"):
        retriever().encode_images([tmp_path / "red.png"])

    def pixels(picture: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) / 255

    config_class, model_class = MODELS["mhsan"]
    config = make("mhsan").config
    ours = Retriever(model_class(config, torch.nn.Conv2d(3, 6, 4, 4)), Vocabulary(WORDS), pixels)
    encoded = ours.encode_images([tmp_path / "red.png"])
    given = torch.zeros(1, 3, 8, 8)
    given[:, 0] = 1
    assert torch.equal(encoded.sequences, ours.encode_images(given).sequences)
    assert torch.equal(encoded.sequences, ours.encode_images(tmp_path / "red.png").sequences)
    assert config_class.kind == "mhsan"


@pytest.mark.parametrize("kind", ["scan", "mhsan", "oan"])
@pytest.mark.parametrize("boxes", [False, True])
def test_a_photograph_is_explained(kind: str, boxes: bool, tmp_path: Path) -> None:
    Image.new("RGB", (64, 48), (90, 120, 200)).save(tmp_path / "photo.jpg")
    ours = retriever(kind)
    where = grid_boxes(4, 64, 48) if boxes else None
    explanation = ours.explain(FEATURES[0], CAPTIONS[0], boxes=where)
    assert explanation.words == CAPTIONS[0].split()
    assert all(isinstance(attention, AttentionMap) for attention in explanation.maps)
    score = ours.similarity(FEATURES[:1], CAPTIONS[:1]).item()
    assert explanation.score == pytest.approx(score, abs=1e-6)
    if kind == "mhsan":
        assert explanation.contributions is None
    else:
        parts = explanation.contributions.parts
        assert [part.name for part in parts] == [attention.name for attention in explanation.maps]
        assert sum(part.values.sum().item() for part in parts) == pytest.approx(score, abs=1e-6)
        assert parts[0].values.shape == (1, len(explanation.words) + 2)
    written = explanation.draw(tmp_path / "photo.jpg", tmp_path / "sheet.png")
    assert len(written) == len(explanation.maps)
    assert {path.name for path in written} == (
        {"sheet.png"} if len(written) == 1 else {f"sheet-{attention.name}.png" for attention in explanation.maps}
    )
    for path in written:
        with Image.open(path) as sheet:
            assert np.asarray(sheet.convert("L")).std() > 1


def test_what_cannot_be_explained_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the model does not attend over regions, there is nothing to draw"):
        retriever("vse").explain(FEATURES[0], CAPTIONS[0]).draw(tmp_path / "photo.png", tmp_path / "sheet.png")
    with pytest.raises(ValueError, match="3 images, of which one is explained"):
        retriever().explain(FEATURES, CAPTIONS[0])
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    with pytest.raises(ValueError, match="3 regions are no square grid"):
        retriever().explain(FEATURES[0, :3], CAPTIONS[0]).draw(tmp_path / "photo.png", tmp_path / "sheet.png")


# --- the Hub


def test_there_and_back_through_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of huggingface_hub fits its functions' arguments, and is kept in a folder."""
    import huggingface_hub

    def create_repo(_: Any, repo_id: str, **options: Any) -> Any:
        assert options == {"private": True, "exist_ok": True}
        return types.SimpleNamespace(repo_id=repo_id)

    def upload_folder(_: Any, *, repo_id: str, folder_path: str, **options: Any) -> str:
        shutil.copytree(folder_path, tmp_path / repo_id)
        assert options == {"commit_message": "first", "revision": "next", "create_pr": None}
        return f"https://hub/{repo_id}"

    def snapshot_download(repo_id: str, *, allow_patterns: list[str], **options: Any) -> str:
        of_model = {pattern for pattern in allow_patterns if "/" not in pattern}
        assert {*of_model, "captions_by.json", "README.md"} == {path.name for path in (tmp_path / repo_id).iterdir()}
        assert (options["revision"], options["local_files_only"]) == ("next", True)
        return str(tmp_path / repo_id)

    for place, stand_in in (
        (huggingface_hub.HfApi, create_repo), (huggingface_hub.HfApi, upload_folder),
        (huggingface_hub, snapshot_download),
    ):  # fmt: skip
        name = stand_in.__name__
        monkeypatch.setattr(place, name, create_autospec(getattr(place, name), side_effect=stand_in))
    ours = retriever()
    ours.model.captions_by = NamedEncoder("/home/someone/bert", "0")
    pushed = ours.push_to_hub("someone/scan", commit_message="first", private=True, branch="next")
    assert pushed == "https://hub/someone/scan"
    assert 'crossret.load("someone/scan")' in (tmp_path / "someone/scan/README.md").read_text()
    loaded = Retriever.from_pretrained("someone/scan", revision="next", local_files_only=True)
    assert loaded.model.captions_by == NamedEncoder("", "0")  # where it lies is told to nobody
    assert torch.equal(loaded.similarity(FEATURES, CAPTIONS), ours.similarity(FEATURES, CAPTIONS))


def test_without_the_hub_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"someone/scan: no such directory; .* pip install 'crossret\[hub\]'"):
        crossret.load("someone/scan")
    with pytest.raises(ImportError, match=r"pip install 'crossret\[hub\]'"):
        retriever().push_to_hub("someone/scan")
    for nowhere in ("nowhere", "nowhere" * 99):
        with pytest.raises(FileNotFoundError, match="nowhere: no such directory, nor the name of a model of the Hub"):
            crossret.load(nowhere)


def test_the_card_says_what_the_training_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    retriever().save_pretrained(run / "best")
    (run / "run.toml").write_text('data = "/home/someone/f30k"\nseed = 1\n')
    (run / "log.jsonl").write_text(
        '{"kind": "step", "epoch": 1}\n'
        '{"kind": "epoch", "epoch": 1, "best": true, "i2t_r1": 11.5, "t2i_r1": 9.25}\n'
        '{"kind": "epoch", "epoch": 2, "best": true, "i2t_r1": 31.5, "t2i_r1": 29.25}\n'
    )
    crossret.load(run).save_pretrained(tmp_path / "card")
    card = (tmp_path / "card" / "README.md").read_text()
    assert "after epoch 2" in card
    assert "| i2t | 31.5 | – | – |" in card
    assert 'data = "f30k"\nseed = 1' in card
    assert "someone" not in card  # who publishes it need not tell where files lie


@pytest.mark.parametrize("value", ['"31.5"', "[]", "NaN", f"1{'0' * 400}"])
def test_recalls_that_are_no_percentages_are_told(tmp_path: Path, value: str) -> None:
    retriever().save_pretrained(tmp_path / "best")
    (tmp_path / "log.jsonl").write_text(f'{{"kind": "epoch", "epoch": 1, "best": true, "i2t_r1": {value}}}\n')
    with pytest.raises(ValueError, match=r"log.jsonl: a recall of the best epoch is no percentage"):
        crossret.load(tmp_path).save_pretrained(tmp_path / "card")


# --- names where one guesses them


def test_names_are_where_one_guesses_them() -> None:
    """Also in an interpreter in which nothing else has imported them."""
    for name in crossret.__all__:
        assert getattr(crossret, name) is not None
    with pytest.raises(AttributeError, match="module 'crossret' has no attribute 'nothing'"):
        crossret.nothing  # noqa: B018
    code = (
        "import sys, crossret; dir(crossret); assert 'torch' not in sys.modules\n"
        "crossret.training.train, crossret.data.InMemoryCorpus, crossret.evaluation.retrieval_metrics\n"
        "assert crossret.load_model is crossret.models.load_model and crossret.Scan is crossret.models.Scan\n"
        "assert crossret.TripletLoss is crossret.losses.TripletLoss\n"
        "assert crossret.SumMaxScorer is crossret.scorers.SumMaxScorer\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
