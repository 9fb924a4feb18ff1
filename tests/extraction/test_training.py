"""Training through an encoder: gradients reach it, what is frozen stays, and a run reads pictures by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import crossret as library
from crossret.data import Vocabulary
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.prepared import Prepared
from crossret.extraction import PictureSplit, load_picture_encoder
from crossret.hyperparameters import ScanConfig
from crossret.models import Scan, load_model
from crossret.retriever import Retriever
from crossret.training import train
from tests.cli.command import TINY, Cli
from tests.distributed.ranks import on_ranks
from tests.explain.test_page import data_of, unpacked
from tests.extraction.learning import CONFIG, Started, check_goes_on, check_gradients


@pytest.fixture(scope="module")
def scenes(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and captions without features."""
    directory = tmp_path_factory.mktemp("pictures") / "scenes"
    return shutil.copytree(scenes, directory, ignore=shutil.ignore_patterns("*.npy", "*.tsv"))


def started(data: Path, folder: Path) -> Started:
    """A model with an encoder, and what it learns from."""
    encoder = load_picture_encoder(folder)
    words = Vocabulary.build(PictureSplit(data, "train", encoder).captions)
    torch.manual_seed(0)
    model = Scan(ScanConfig(image_dim=encoder.dim, vocabulary_size=len(words), embed_dim=16, word_dim=8))
    model.read_pictures_by(encoder)
    return model, [PrecomputedCorpus(PictureSplit(data, split, encoder), words) for split in ("train", "dev")]


@pytest.mark.parametrize("kind", ["vit", "siglip2_vision_model"])
def test_gradients_reach_the_encoder(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    check_gradients(lambda: started(scenes, folder_of(kind)), "encoder", tmp_path)


def test_a_training_goes_on_bit_for_bit(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    check_goes_on(lambda: started(scenes, folder_of("dinov2")), "encoder", tmp_path)


def test_a_frozen_encoder_stays_as_it_is(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    model, data = started(scenes, folder_of("clip_vision_model"))
    model.encoder.requires_grad_(False)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    model.train()
    assert model.text.training and not any(part.training for part in model.encoder.modules())
    train(model, *data, CONFIG, tmp_path, progress=False)
    changed = {name for name, each in model.state_dict().items() if not torch.equal(each, before[name])}
    assert changed and not any(name.startswith("encoder.") for name in changed)
    # What the encoder makes of pictures in a batch is what it makes of them alone.
    split = data[1].data
    tokens = model.encoder(Prepared(split.features[np.array([2, 0])].items)).features
    torch.testing.assert_close(tokens[1], model.encoder(split.features[np.array([0])]).features[0])


def test_a_run_reads_pictures_by_itself(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    run, folder = tmp_path / "run", folder_of("siglip_vision_model")
    through = ["--encoder", folder, "--encoder-learning-rate", "0.01", "--checkpoint-encoder"]
    assert crossret("train", scenes, "--output", run, *TINY, "--epochs", "1", *through) == 0
    best, _ = load_model(run / "best")
    before = load_picture_encoder(folder).module.state_dict()
    assert not torch.equal(best.encoder.module.state_dict()[name := next(iter(before))], before[name])
    assert "encoder:" in (run / "run.toml").read_text()
    figures = ["--output", tmp_path / "figures.json", "--scores", tmp_path / "scores.npy"]
    assert crossret("evaluate", run, scenes, *figures, "--pointing-game") == 0
    told = json.loads((tmp_path / "figures.json").read_text())
    assert told["images"] == 4
    (game,) = told["models"][0]["pointing_game"]
    assert game["asked"] > 0 and 0 < game["centre_chance"] < game["chance"] < 1 / 2  # of 16 tokens
    together = ["--ensemble", tmp_path / "scores.npy", "--ensemble", run, "--scores", tmp_path / "both.npy"]
    assert crossret("evaluate", run, scenes, *together) == 0
    np.testing.assert_allclose(np.load(tmp_path / "both.npy"), np.load(tmp_path / "scores.npy"), atol=1e-6)
    retriever = library.load(run)
    pictures = sorted((scenes / "images" / "test").iterdir())
    captions = PictureSplit(scenes, "test", retriever.model.encoder.reader).captions
    found = retriever.similarity(pictures, captions)
    np.testing.assert_allclose(found.numpy(), np.load(tmp_path / "scores.npy"), atol=1e-5)
    assert retriever.search(captions[0], pictures, k=2).scores.shape == (1, 2)
    retriever.save_pretrained(tmp_path / "saved")
    again = library.load(tmp_path / "saved").similarity(pictures, captions)
    assert torch.equal(again, found)
    drawn = tmp_path / "drawn"
    assert crossret("explain", run, scenes, "--photographs", scenes / "images" / "test", "--output", drawn) == 0
    assert len(list(drawn.iterdir())) == 4
    assert crossret("explain", run, scenes, "--html", tmp_path / "page.html", "--number", "0") == 0
    retriever.explain(pictures[0], captions[0]).html(tmp_path / "one.html")
    (of_split, *_), (alone,) = (data_of(tmp_path / f"{name}.html")["pairs"] for name in ("page", "one"))
    for name in ("boxes", "size", "words"):  # as the encoder tells them
        assert of_split[name] == alone[name]
    assert of_split["score"] == pytest.approx(alone["score"], rel=1e-5)
    again = ["--fine-tune", run, "--set", "negatives=hardest", "--epochs", "1", "--batch-size", "16"]
    assert crossret("train", scenes, "--output", tmp_path / "tuned", *again) == 0
    tuned, _ = load_model(tmp_path / "tuned" / "best")
    assert tuned.config.negatives == "hardest"
    kept, changed = (next(model.encoder.module.parameters()) for model in (best, tuned))
    assert 0 < (changed - kept).abs().max() < 1e-3  # at the encoder's rate, a fiftieth of the model's
    for wrong, message in (
        (["--freeze-encoder"], "needs --encoder"),
        (["--encoder", folder, "--encoder-learning-rate", "-1"], "greater than 0"),
        (["--checkpoint-encoder"], "--checkpoint-encoder needs --encoder"),
        (["--encoder", folder, "--freeze-encoder", "--encoder-learning-rate", "1"], "makes no difference"),
    ):
        assert message in crossret.refused("train", scenes, "--output", tmp_path / "other", *TINY, *wrong)


def test_an_explanation_lies_where_the_encoder_crops(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of a picture that is explained by its file or encoded, over that file or a larger one."""
    model, (learnt, _) = started(scenes, folder_of("clip_vision_model"))
    retriever = Retriever(model, learnt.vocabulary)
    files, sizes = (tmp_path / "small.png", tmp_path / "large.png"), ((80, 60), (160, 120))
    for file, size in zip(files, sizes, strict=True):
        Image.new("RGB", size, (90, 120, 200)).save(file)
    tokens = model.encoder.reader.encode_images([Image.open(files[0]).convert("RGB")])
    assert tokens.boxes is not None and tokens.boxes[0, 0] > 0  # left of it nothing is read
    for image in (files[0], [files[0]], retriever.encode_images([files[0]])):
        explanation = retriever.explain(image, "a red circle")
        for file in files:
            explanation.html(tmp_path / "page.html", file)
            (pair,) = data_of(tmp_path / "page.html")["pairs"]
            expected = tokens.boxes.numpy() / np.tile(sizes[0], 2)
            np.testing.assert_allclose(unpacked(pair["boxes"], 16, 0, 1), expected, atol=1e-4)


def trained_both_ways(scenes: Path, folder: Path, output: Path) -> dict[str, torch.Tensor]:
    """In float32, and in bfloat16 where that is safe, whose weights are returned."""
    for name, amp in (("float32", False), ("bfloat16", True)):
        model, data = started(scenes, folder)
        config = replace(CONFIG, epochs=1, batch_size=16, learning_rate=1e-4, amp=amp)
        train(model, *data, config, output / name, progress=False)
    return dict(model.state_dict())


def test_ranks_train_the_encoder_as_one_process_does(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    trained_both_ways(scenes, folder_of("vit"), alone)
    first, second = on_ranks(2, trained_both_ways, scenes, folder_of("vit"), ranks)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())

    def losses(run: Path) -> list[float]:
        return [json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines()]

    exact = losses(alone / "float32")
    assert len(exact) == 5
    assert losses(ranks / "float32") == pytest.approx(exact, rel=1e-5)
    for run in (alone, ranks):
        assert losses(run / "bfloat16") == pytest.approx(exact, rel=1e-2)
        assert losses(run / "bfloat16") != exact


def test_what_cannot_be_read(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = load_picture_encoder(folder_of("vit"))
    with pytest.raises(FileNotFoundError, match=r"train\.tsv: no such file"):
        PictureSplit(tmp_path, "train", encoder)
    with pytest.raises(ValueError, match=r"tokens have 16 numbers, but the model's image_dim is 5"):
        Scan(ScanConfig(image_dim=5, vocabulary_size=9)).read_pictures_by(encoder)
    broken = shutil.copytree(scenes, tmp_path / "broken")
    (broken / "images" / "train" / "00011.png").write_bytes(b"no picture")
    model, data = started(broken, folder_of("vit"))
    with pytest.raises(ValueError, match=r"00011\.png: not a readable image"):
        train(model, *data, CONFIG, tmp_path / "run", progress=False)
    assert not list((tmp_path / "run").glob("*"))  # it is told before anything is written
    encoder.module = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="vit: cannot compute activations again"):
        encoder.checkpoint_gradients()
    with pytest.raises(ValueError, match="has no encoder"):
        Scan(ScanConfig(image_dim=5, vocabulary_size=9)).encode_images(Prepared([None]))
