"""What a training refuses: another training's files, damaged ones, data and models that do not fit."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.data.vocabulary import Vocabulary
from crossret.files.tensors import read_header, read_tensors, write_tensors
from crossret.hyperparameters.settings import settable
from crossret.models import ScanConfig
from crossret.training import TrainingConfig
from tests.hyperparameters.others import with_another
from tests.training.toy import CONFIG, OBJECTS, DroppingScan, ToyCorpus, make_model, run

MODEL = make_model().config
MAY_CHANGE = ("epochs", "patience", "log_every", "checkpoint_every", "encode_chunk")


def test_a_training_is_not_overwritten_nor_invented(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match=r"checkpoint.safetensors: there is a training already"):
        run(straight)
    with pytest.raises(FileNotFoundError, match=r"checkpoint.safetensors: no such file"):
        run(tmp_path / "nothing", resume=True)


@pytest.mark.parametrize("name", [each.name for each in fields(TrainingConfig) if each.name not in MAY_CHANGE])
def test_a_training_goes_on_as_it_began(straight: Path, name: str) -> None:
    other = with_another(CONFIG, name)
    before, now = (json.loads(json.dumps(asdict(config)[name])) for config in (CONFIG, other))
    with pytest.raises(ValueError, match=re.escape(f"safetensors: was trained with {name} = {before}, not {now}")):
        run(straight, other, resume=True)


@pytest.mark.parametrize("name", settable(ScanConfig))
def test_a_model_goes_on_as_it_began(straight: Path, name: str) -> None:
    other = with_another(MODEL, name)
    said = f"was trained with the model's {name} = {getattr(MODEL, name)}, not {getattr(other, name)}"
    with pytest.raises(ValueError, match=re.escape(f"checkpoint.safetensors: {said}")):
        run(straight, model=DroppingScan(other), resume=True)


@pytest.mark.parametrize(("name", "said"), [("train_data", "training"), ("dev_data", "development")])
def test_a_training_does_not_go_on_with_other_data(straight: Path, name: str, said: str) -> None:
    others = ToyCorpus(22 if name == "train_data" else 8, seed=5)
    with pytest.raises(ValueError, match=f"checkpoint.safetensors: was trained with {said} data = "):
        run(straight, resume=True, **{name: others})


def test_a_damaged_checkpoint_is_refused(straight: Path, tmp_path: Path) -> None:
    contents = (straight / "checkpoint.safetensors").read_bytes()
    for damaged in (contents[: len(contents) // 2], contents[:-1], b""):
        (tmp_path / "checkpoint.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint.safetensors: not a readable safetensors file"):
            run(tmp_path, resume=True)
    types, metadata = read_header(straight / "checkpoint.safetensors")
    tensors = read_tensors(straight / "checkpoint.safetensors", types)

    def changed(**values: Any) -> str:
        return json.dumps({**json.loads(metadata["position"]), **values})

    for key, value, message in (
        ("format", "another", "not a training checkpoint of this version"),
        ("machine", "{}", "its machine must have threads"),
        ("position", changed(epoch_step=2), "its position is no step of epochs of 6"),
        ("position", changed(log_bytes=1.5), "its position must have epoch .int., epoch_step .int."),
    ):
        write_tensors(tmp_path / "checkpoint.safetensors", tensors, {**metadata, key: value})
        with pytest.raises(ValueError, match=rf"checkpoint.safetensors: {message}"):
            run(tmp_path, resume=True)
    name = "optimizer.exp_avg.image.fc.bias"
    others = {key: tensor for key, tensor in tensors.items() if key != name}
    for damaged, message in (
        ({**tensors, name: torch.zeros(13)}, rf"'{name}' is \(13,\) torch.float32, expected \(12,\)"),
        (others, f"tensor '{name}' is missing"),
        ({key: tensor for key, tensor in tensors.items() if key != name.replace("exp_avg", "step")}, "unexpected"),
    ):
        write_tensors(tmp_path / "checkpoint.safetensors", damaged, metadata)
        with pytest.raises(ValueError, match=rf"checkpoint.safetensors: .*{message}"):
            run(tmp_path, resume=True)


def test_a_log_shorter_than_the_checkpoint_knows_is_refused(straight: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes((straight / "checkpoint.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"log.jsonl: has 0 bytes, but the checkpoint was written after \d+"):
        run(tmp_path, resume=True)


def test_data_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    other = ToyCorpus(8)
    other.vocabulary = Vocabulary([f"word{number}" for number in range(OBJECTS + 1)])
    with pytest.raises(ValueError, match="dev_data: its vocabulary is not that of train_data"):
        run(tmp_path, dev_data=other)
    with pytest.raises(ValueError, match="the vocabulary has 17 words, but the model was made for 5"):
        run(tmp_path, model=make_model(vocabulary_size=5))
    with pytest.raises(ValueError, match="toy: regions have 16 features, but the model's image_dim is 9"):
        run(tmp_path, model=make_model(image_dim=9))
    for name in ("train_data", "dev_data"):
        poorer = ToyCorpus(22)
        poorer.name, poorer.n_regions = f"the {name}", 4
        with pytest.raises(
            ValueError, match=f"the {name}: images have 4 regions, fewer than the model's region_count 5"
        ):
            run(tmp_path, model=make_model(region_count=5), **{name: poorer})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "value"), [("train_data", torch.nan), ("dev_data", -torch.inf)])
def test_features_that_are_not_finite_are_found_before_anything_is_written(
    tmp_path: Path, name: str, value: float
) -> None:
    corpus = ToyCorpus(22)
    corpus.regions[11, 2, 3] = corpus.regions[12] = value
    with pytest.raises(ValueError, match=r"^toy: image 11 has features that are not finite in float32$"):
        run(tmp_path, **{name: corpus})
    assert not any(tmp_path.iterdir())
    run(tmp_path, replace(CONFIG, epochs=1))
    with pytest.raises(FileExistsError, match="there is a training already"):  # before all features are read
        run(tmp_path, **{name: corpus})
