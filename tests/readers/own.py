"""Readers of files that the library writes, each with a valid one that a stranger may have changed."""

from __future__ import annotations

import io
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from crossret.cli.commands.application import app
from crossret.cli.run_config import use_config, write_config
from crossret.data import PrecomputedDataset
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.named_encoder import NamedEncoder
from crossret.data.owners import write_owners
from crossret.data.scenes.grounding import read_grounding
from crossret.evaluation.ensembles import StoredScores
from crossret.files.features import StoredItems
from crossret.files.json import write_json, write_json_lines
from crossret.hyperparameters import TrainingConfig
from crossret.model_card import write_card
from crossret.models import MODELS, load_model, save_model
from crossret.models.checkpoints import CAPTIONS_BY
from crossret.models.encoded import Encoded
from crossret.picture_index import PictureIndex
from crossret.picture_index.files import Picture, write_index, write_pictures
from crossret.search.candidates import read_candidates
from crossret.search.encoding import encode_split
from crossret.search.sharding import cut_corpus
from crossret.search.stored import StoredEncoded
from crossret.training.optimizer import optimizer_of
from crossret.training.randomness import random_state, set_random_state
from crossret.training.state import Machine, Position, load_state, save_state
from tests.models.batch import encode, make
from tests.readers.target import DIM, HEADER, IMAGES, REGIONS, WORDS, Target, boxes, randn

CPU = torch.device("cpu")


def _data(folder: Path) -> None:
    np.save(folder / "test_ims.npy", randn(IMAGES, REGIONS, DIM))
    np.save(folder / "test_boxes.npy", boxes(IMAGES, REGIONS))
    np.save(folder / "test_lengths.npy", np.array([2, 1, 2]))
    (folder / "test_caps.txt").write_bytes("a cat\na dog — “here”\ncat and mat\nmat\n".encode())
    (folder / "test_ids.txt").write_bytes(b"1\n2\n3\n")
    (folder / "test_caption_ids.txt").write_bytes(b"11\n12\n13\n14\n")
    write_json(folder / "id_mapping.json", {"1": "COCO_val2014_000000000001.jpg", "2": "a/b.jpg", "3": "3.jpg"})
    write_owners(folder / "test_image_of_caption.npy", [1, 1, 2])


def _read_data(folder: Path) -> None:
    data = PrecomputedDataset(folder, "test")
    for image in range(len(data.stored)):
        data.stored.is_finite(image)
    data.first(1)
    for batch in PrecomputedCorpus(data, WORDS).caption_batches(2):
        assert len(batch[0])


def _packed(folder: Path) -> None:
    np.save(folder / "values.npy", randn(5, DIM))
    np.save(folder / "offsets.npy", np.array([0, 2, 5]))


def _padded(folder: Path) -> None:
    np.save(folder / "features.npy", randn(IMAGES, REGIONS, DIM))
    np.save(folder / "lengths.npy", np.array([2, 1, 2]))


def _read_items(folder: Path) -> None:
    items = StoredItems.of_directory(folder)
    for item in range(min(len(items), 10)):
        items.is_finite(item)


def _model(folder: Path, kind: str = "scan") -> Any:
    model = make(kind, image_dim=DIM, vocabulary_size=len(WORDS))
    save_model(model, folder, WORDS)
    return model


def _model_of_tokens(folder: Path) -> None:
    _model(folder)
    write_json(folder / CAPTIONS_BY, asdict(NamedEncoder("models/bert", "0123")))


@cache
def _trained() -> tuple[Any, Any]:
    """A model, and its optimizer after a step."""
    model = make("vse")
    optimizer = optimizer_of(model, TrainingConfig())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def _training(folder: Path) -> None:
    position = Position(step=3, epoch_step=3)
    save_state(folder / "x", *_trained(), random_state(CPU), position, {"seed": 1}, Machine.this(CPU))


def _resume(folder: Path) -> None:
    with torch.random.fork_rng([]):
        set_random_state(load_state(folder / "x", *_trained(), random_state(CPU), {"seed": 1}, 10)[1], CPU)


def _encoded(folder: Path) -> None:
    _data(folder)
    for name in ("id_mapping.json", "test_lengths.npy"):
        (folder / name).unlink()
    model = _model(folder / "model", "oan")
    encode_split(model, PrecomputedCorpus(PrecomputedDataset(folder, "test"), WORDS), folder / "encoded")


def _read_encoded(folder: Path) -> None:
    model, _ = load_model(folder / "model")
    stored = StoredEncoded.of_directory(folder / "encoded", "images")
    stored.check(model)
    items = stored.items(CPU)
    for run in items.runs(10):
        items[run]
    stored.why_not_finite(0)


def _index(folder: Path) -> None:
    (folder / "corpus").mkdir()
    _packed(folder / "corpus")
    cut_corpus(folder / "corpus", folder / "images", shards=2)
    for shard in ("00000", "00001"):
        write_pictures(folder / "images" / shard, [Picture("/album", "a/1.jpg", 10, 20)])
    write_index(folder, NamedEncoder("stand-in", "0123"))


def _read_index(folder: Path) -> None:
    index = PictureIndex(folder)
    assert not isinstance(index.images, StoredEncoded)
    for number in range(len(index.images.shards)):
        index.images.open(number)


def _settings(folder: Path) -> None:
    settings = {"model": "oan", "settings": ["heads=2"], "epochs": 3, "learning_rate": 0.1, "tf32": True}
    write_config(folder / "x.toml", "train", {"data": folder, **settings})


@cache
def _command() -> Any:
    return typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]


def _read_settings(folder: Path) -> None:
    context = _command().context_class(_command(), info_name="train")
    use_config(context, folder / "x.toml")
    for value in (context.default_map or {}).values():
        value()


def _run(folder: Path) -> None:
    _model(folder, "vse")
    recalls = {f"{way}_{recall}": 1.5 for way in ("i2t", "t2i") for recall in ("r1", "r5", "r10")}
    write_json_lines(folder / "log.jsonl", [{"kind": "epoch", "best": True, "epoch": 2, **recalls}])
    write_config(folder / "run.toml", "train", {"data": folder, "epochs": 3})


def _read_run(folder: Path) -> None:
    write_card(folder, "mine", *load_model(folder), folder)


def _candidates() -> list[bytes]:
    array = io.BytesIO()
    np.save(array, np.array([[0, 1], [2, -1]]))
    return [array.getvalue()]


def _grounding(folder: Path) -> None:
    write_json_lines(folder / "x", [{"words": ["a", "cat"], "named": [[1, [0, 0, 4, 5]]], "pos": ["DET", "NOUN"]}])


def _saved_encoded(folder: Path) -> None:
    encode(make("oan"))[0].save(folder / "x")


OWN: dict[str, Target] = {
    **{
        f"data/{name}": Target(_data, name, _read_data)
        for name in (
            *("test_ims.npy", "test_boxes.npy", "test_lengths.npy", "test_image_of_caption.npy"),
            *("test_caps.txt", "test_ids.txt", "test_caption_ids.txt", "id_mapping.json"),
        )
    },
    "data/values.npy": Target(_packed, "values.npy", _read_items),
    "data/offsets.npy": Target(_packed, "offsets.npy", _read_items),
    "data/features.npy": Target(_padded, "features.npy", _read_items),
    "data/lengths.npy": Target(_padded, "lengths.npy", _read_items),
    "data/grounding": Target(_grounding, "x", lambda folder: read_grounding(folder / "x")),
    **{f"model/config-{kind}": Target(partial(_model, kind=kind), "config.json", load_model) for kind in MODELS},
    "model/captions_by": Target(_model_of_tokens, "captions_by.json", load_model),
    "model/vocabulary": Target(_model, "vocabulary.json", load_model),
    "model/weights": Target(_model, "model.safetensors", load_model),
    "model/header": Target(_model, "model.safetensors", load_model, HEADER),
    "model/log": Target(_run, "log.jsonl", _read_run),
    "model/run": Target(_run, "run.toml", _read_run),
    "training/checkpoint": Target(_training, "x", _resume),
    "training/header": Target(_training, "x", _resume, HEADER),
    "training/settings": Target(_settings, "x.toml", _read_settings, raises=(typer.BadParameter,)),
    "encoded/tensors": Target(_saved_encoded, "x", lambda folder: Encoded.load(folder / "x")),
    "encoded/header": Target(_saved_encoded, "x", lambda folder: Encoded.load(folder / "x"), HEADER),
    **{
        f"encoded/{name}": Target(_encoded, f"encoded/images/{name}", _read_encoded)
        for name in ("model.json", "values.npy", "offsets.npy", "vectors_heads.npy")
    },
    "index/encoder": Target(_index, "index.json", _read_index),
    "index/shards": Target(_index, "images/shards.json", _read_index),
    "index/pictures": Target(_index, "images/00000/pictures.json", _read_index),
    "search/candidates": Target(
        lambda folder: write_json_lines(folder / "x", [{"query": 0, "results": [{"index": 1}, {"index": 0}]}]),
        "x",
        lambda folder: read_candidates(folder / "x"),
        seeds=_candidates,
    ),
    "search/scores": Target(
        lambda folder: np.save(folder / "x.npy", randn(2, 3)),
        "x.npy",
        lambda folder: StoredScores.of_file(folder / "x.npy", (2, 3))(),
    ),
}
