"""Model directories: weights, hyper-parameters and vocabulary on disk, written and read so that they always agree."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossret.data.vocabulary import Vocabulary
from crossret.files import atomic_write
from crossret.models import MODELS, Matcher
from crossret.tensor_files import TensorType, read_header, read_tensors, write_tensors

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
_LARGEST_CONFIG = 2**20  # bytes


def save_model(model: Matcher, directory: str | os.PathLike[str], vocabulary: Vocabulary) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``vocabulary.json`` into ``directory``, which is made if needed.

    Each file is replaced as a whole, the weights last. They carry the hyper-parameters and the vocabulary's digest in
    their header, so that ``load_model`` can tell files that do not belong together from those that do.

    Raises:
        ValueError: the vocabulary is not as large as the model's.
        OSError: the directory cannot be written.
    """
    folder = Path(directory)
    check_vocabulary(model, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save(folder / VOCABULARY)
    with atomic_write(folder / CONFIG) as file:
        file.write(describe_model(model).encode())
    header = {"model": describe_model(model), "vocabulary": digest(vocabulary)}
    write_tensors(folder / WEIGHTS, tensors_of(model), header)


def load_model(directory: str | os.PathLike[str]) -> tuple[Any, Vocabulary]:
    """Read what ``save_model`` wrote: (model in evaluation mode on the CPU, vocabulary).

    Nothing is allocated before the names, shapes and dtypes in the weights' header agree with ``config.json``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is malformed, or the files do not belong together; names the file and the tensor or field.
    """
    folder = Path(directory)
    description = _read_description(folder / CONFIG)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    _, header = read_header(folder / WEIGHTS)
    if header.get("model") != description:
        raise ValueError(f"{folder / CONFIG}: not the hyper-parameters that {WEIGHTS} was saved with")
    if header.get("vocabulary") != digest(vocabulary):
        raise ValueError(f"{folder / VOCABULARY}: not the vocabulary that {WEIGHTS} was saved with")
    model = _empty_model(folder / CONFIG, description)
    check_vocabulary(model, vocabulary)
    weights = read_tensors(folder / WEIGHTS, types_of(tensors_of(model)))
    model.load_state_dict(weights, assign=True)
    return model.eval(), vocabulary


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


def _read_description(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.stat().st_size > _LARGEST_CONFIG:
        raise ValueError(f"{path}: larger than {_LARGEST_CONFIG} bytes, not a model's hyper-parameters")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason})") from error


def _empty_model(path: Path, description: str) -> Any:
    """The described model with parameters that have shapes but no memory."""
    try:
        contents = json.loads(description)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(contents, dict) or contents.keys() != {"model", "config"}:
        raise ValueError(f"{path}: must be an object of 'model' and 'config'")
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
