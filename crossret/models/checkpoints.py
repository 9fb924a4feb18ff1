"""Model directories: weights, hyper-parameters and vocabulary on disk, in one file so that they always agree."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossret.data.vocabulary import SPECIAL_WORDS, Vocabulary
from crossret.files.atomic import atomic_write
from crossret.files.json import parse_json, parse_json_object
from crossret.files.tensors import TensorType, read_header, read_tensors, write_tensors
from crossret.hyperparameters import ModelConfig
from crossret.models import MODELS, Matcher

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
BEST = "best"  # in the directory of a training


def save_model(model: Matcher, directory: str | os.PathLike[str], vocabulary: Vocabulary) -> None:
    """Write a model into ``directory``, which is made if needed.

    ``model.safetensors`` is the model: its header carries the hyper-parameters and the words, so that one rename
    replaces all of an earlier model or nothing. ``config.json`` and ``vocabulary.json`` (the published code's format)
    are copies for people and other programs, written after it; ``load_model`` does not read them.

    Raises:
        ValueError: the vocabulary is not as large as the model's.
        OSError: the directory cannot be written.
    """
    folder = Path(directory)
    check_vocabulary(model, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    description = describe_model(model)
    header = {"model": description, "words": json.dumps(vocabulary.idx2word, ensure_ascii=False)}
    write_tensors(folder / WEIGHTS, tensors_of(model), header)
    with atomic_write(folder / CONFIG) as file:
        file.write(description.encode())
    vocabulary.save(folder / VOCABULARY)


def load_model(directory: str | os.PathLike[str]) -> tuple[Any, Vocabulary]:
    """Read what ``save_model`` wrote: (model in evaluation mode on the CPU, vocabulary).

    Nothing is allocated before the names, shapes and dtypes of the tensors agree with the hyper-parameters.

    Raises:
        FileNotFoundError: there is no ``model.safetensors``.
        ValueError: it is malformed, or its parts do not belong together; names the file and the tensor or field.
    """
    path = Path(directory) / WEIGHTS
    _, header = read_header(path)
    for name in ("model", "words"):
        if name not in header:
            raise ValueError(f"{path}: not a model of crossret: its metadata has no {name!r}")
    model = _empty_model(path, header["model"])
    vocabulary = _vocabulary(path, header["words"])
    try:
        check_vocabulary(model, vocabulary)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    weights = read_tensors(path, types_of(tensors_of(model)))
    model.load_state_dict(weights, assign=True)
    return model.eval(), vocabulary


def model_directory(run: str | os.PathLike[str]) -> Path:
    """Where the model is: in the directory of a training that of its best epoch, else the directory itself."""
    best = Path(run) / BEST
    return best if best.is_dir() else Path(run)


def with_config(model: Matcher, config: ModelConfig, place: str) -> Any:
    """A model with the weights of another and with hyper-parameters that differ in what changes no weight's shape.

    Raises:
        ValueError: the weights of ``model`` do not fit; names ``place``, where it is from, and the first such weight.
    """
    with torch.device("meta"):
        changed = MODELS[config.kind][1](config)
    weights, wanted = tensors_of(model), types_of(tensors_of(changed))
    for name in {**wanted, **weights}:
        has, needs = (types.get(name, "missing") for types in (types_of(weights), wanted))
        if has != needs:
            raise ValueError(f"{place}: {name!r} is {has}; with the hyper-parameters that are asked for, {needs}")
    changed.load_state_dict(weights, assign=True)
    return changed


def describe_model(model: Matcher) -> str:
    """A model's kind and hyper-parameters as JSON, the same text for the same model."""
    return json.dumps({"model": model.kind, "config": json.loads(model.config.to_json())}, indent=1)


def check_vocabulary(model: Matcher, vocabulary: Vocabulary) -> None:
    """Raise a ValueError where the vocabulary is not as large as the model's."""
    size = model.config.vocabulary_size
    if len(vocabulary) != size:
        raise ValueError(f"the vocabulary has {len(vocabulary)} words, but the model was made for {size}")


def digest(vocabulary: Vocabulary) -> str:
    """A fingerprint of the words and their numbers."""
    return hashlib.sha256("\n".join(vocabulary.idx2word).encode()).hexdigest()


def tensors_of(model: Matcher) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(model.state_dict())


def types_of(tensors: dict[str, Tensor]) -> dict[str, TensorType]:
    """Shape and dtype of each tensor."""
    return {name: TensorType.of(tensor) for name, tensor in tensors.items()}


def _vocabulary(path: Path, text: str) -> Vocabulary:
    words = parse_json(text, f"{path}: words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{path}: words must be a list of strings")
    if tuple(words[: len(SPECIAL_WORDS)]) != SPECIAL_WORDS:
        raise ValueError(f"{path}: words must begin with {', '.join(SPECIAL_WORDS)}, not {words[:4]}")
    try:
        return Vocabulary(words[len(SPECIAL_WORDS) :])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _empty_model(path: Path, description: str) -> Any:
    """The described model with parameters that have shapes but no memory."""
    contents = parse_json_object(description, f"{path}: hyper-parameters")
    if contents.keys() != {"model", "config"}:
        raise ValueError(f"{path}: hyper-parameters must be an object of 'model' and 'config'")
    kind, values = contents["model"], contents["config"]
    if not isinstance(kind, str) or kind not in MODELS:
        raise ValueError(f"{path}: 'model' must be one of {', '.join(MODELS)}, not {kind!r}")
    config_class, model_class = MODELS[kind]
    if not isinstance(values, dict):
        raise ValueError(f"{path}: 'config' must be an object")
    try:
        config = config_class.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    with torch.device("meta"):
        return model_class(config)
