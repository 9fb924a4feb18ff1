"""Model directories: weights, hyper-parameters and vocabulary on disk, in one file so that they always agree."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crossret.data.vocabulary import SPECIAL_WORDS, Vocabulary
from crossret.files.atomic import atomic_write
from crossret.files.json import flattened, parse_json, parse_json_object, read_json_object
from crossret.files.tensors import TensorType, read_header, read_tensors, write_tensors
from crossret.hyperparameters import ModelConfig
from crossret.models import MODELS, Matcher

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
_BACKBONE = "backbone"  # the part of a model that is a module of the user's own
_NAMED = 5  # tensors that an error names
BEST = "best"  # in the directory of a training


def save_model(model: Matcher, directory: str | os.PathLike[str], vocabulary: Vocabulary) -> None:
    """Write a model into ``directory``, which is made if needed.

    ``model.safetensors`` is the model: its header carries the hyper-parameters and the words, so that one rename
    replaces all of an earlier model or nothing. ``config.json`` and ``vocabulary.json`` (the published code's format)
    are copies for people and other programs, written after it; ``load_model`` takes nothing from them, and refuses
    copies of something else.

    Raises:
        ValueError: the vocabulary is not as large as the model's.
        OSError: the directory cannot be written.
    """
    folder = Path(directory)
    check_vocabulary(model, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    description = describe_model(model)
    _remove_other_copies(folder, parse_json(description, WEIGHTS), vocabulary)
    header = {"model": description, "words": json.dumps(vocabulary.idx2word, ensure_ascii=False)}
    write_tensors(folder / WEIGHTS, tensors_of(model), header)
    with atomic_write(folder / CONFIG) as file:
        file.write(description.encode())
    vocabulary.save(folder / VOCABULARY)


def load_model(directory: str | os.PathLike[str], *, backbone: nn.Module | None = None) -> tuple[Any, Vocabulary]:
    """Read what ``save_model`` wrote: (model in evaluation mode on the CPU, vocabulary).

    Nothing is allocated before the names, shapes and dtypes of the tensors agree with the hyper-parameters.

    Args:
        directory: where the model is.
        backbone: of a model that was saved with one, a module like it. It becomes a part of the model, with the saved
            weights and buffers in the place of its own; which of its weights require a gradient stays as it is.

    Raises:
        FileNotFoundError: there is no ``model.safetensors``.
        ValueError: it is malformed, its parts do not belong together, or ``config.json`` or ``vocabulary.json`` is
            there and says something else; names the file and the tensor or field. The model has a backbone and none is
            given, or one is and the model has none, or another: names the tensors.
    """
    path = Path(directory) / WEIGHTS
    found, header = read_header(path)
    for name in ("model", "words"):
        if name not in header:
            raise ValueError(f"{path}: not a model of crossret: its metadata has no {name!r}")
    model = _empty_model(path, header["model"], backbone)
    _check_backbone(path, found, backbone)
    vocabulary = _vocabulary(path, header["words"])
    try:
        check_vocabulary(model, vocabulary)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    weights = read_tensors(path, types_of(tensors_of(model)))
    if backbone is not None:
        prefix = f"{_BACKBONE}."
        own = {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
        # Copied, as its parts may share weights; assigned where there is nothing to copy into.
        backbone.load_state_dict(own, assign=any(tensor.is_meta for tensor in backbone.state_dict().values()))
        backbone.cpu()
    model.load_state_dict(weights, assign=True, strict=backbone is None)
    if difference := _difference(Path(directory), parse_json(header["model"], path), vocabulary):
        raise ValueError(f"{difference}, which alone is read: remove this copy, or make the model that you mean")
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
    changed = _made(config, getattr(model, _BACKBONE, None))
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


def config_of(kind: Any, values: Any, path: Path) -> ModelConfig:
    """The hyper-parameters that a file says a model of a kind has: of JSON that ``describe_model`` wrote.

    Raises:
        ValueError: there is no such kind, or it has no such hyper-parameters; names the file.
    """
    if not isinstance(kind, str) or kind not in MODELS:
        raise ValueError(f"{path}: 'model' must be one of {', '.join(MODELS)}, not {kind!r}")
    if not isinstance(values, dict):
        raise ValueError(f"{path}: 'config' must be an object")
    try:
        config: ModelConfig = MODELS[kind][0].from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return config


def check_vocabulary(model: Matcher, vocabulary: Vocabulary) -> None:
    """Raise a ValueError where the vocabulary is not as large as the model's."""
    size = model.config.vocabulary_size
    if len(vocabulary) != size:
        raise ValueError(f"the vocabulary has {len(vocabulary)} words, but the model was made for {size}")


def digest(vocabulary: Vocabulary) -> str:
    """A fingerprint of the words and their numbers."""
    return hashlib.sha256("\n".join(vocabulary.idx2word).encode()).hexdigest()


def digest_of_weights(model: Matcher) -> str:
    """A fingerprint of a model's parameters and buffers: their names, shapes, dtypes and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors_of(model).items()):
        found.update(f"{name} {TensorType.of(tensor)}\n".encode())
        if tensor.numel():
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def tensors_of(model: Matcher) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(model.state_dict())


def types_of(tensors: dict[str, Tensor]) -> dict[str, TensorType]:
    """Shape and dtype of each tensor."""
    return {name: TensorType.of(tensor) for name, tensor in tensors.items()}


def _difference(folder: Path, description: dict[str, Any], vocabulary: Vocabulary) -> str | None:
    """What a copy says that the model does not, if there are copies; raises as ``read_json_object``."""
    path = folder / CONFIG
    if path.exists():
        copy = read_json_object(path)
        copied, meant = (flattened(contents) for contents in (copy, description))
        for name in {**meant, **copied}:
            if copied.get(name) != meant.get(name):
                return f"{path}: its {name} is {copied.get(name)!r}, but {meant.get(name)!r} in {WEIGHTS}"
    path = folder / VOCABULARY
    if path.exists() and Vocabulary.load(path).idx2word != vocabulary.idx2word:
        return f"{path}: its words are not those in {WEIGHTS}"
    return None


def _remove_other_copies(folder: Path, description: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Ahead of another model: one that is killed before the copies are replaced leaves none of the wrong model."""
    try:
        same = _difference(folder, description, vocabulary) is None
    except (OSError, ValueError):
        same = False
    if not same:
        for name in (CONFIG, VOCABULARY):
            (folder / name).unlink(missing_ok=True)


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


def _made(config: ModelConfig, backbone: nn.Module | None) -> Any:
    """A model with parameters that have shapes but no memory, but for the backbone's."""
    kept = {} if backbone is None else {_BACKBONE: backbone}
    with torch.device("meta"):
        return MODELS[config.kind][1](config, **kept)


def _check_backbone(path: Path, found: Mapping[str, TensorType], backbone: nn.Module | None) -> None:
    """Raise a ValueError where the tensors of the file are of another backbone than the one given."""
    prefix = f"{_BACKBONE}."
    saved = {name: kind for name, kind in found.items() if name.startswith(prefix)}
    if backbone is None:
        if saved:
            raise ValueError(
                f"{path}: the model reads pixels through a backbone, of which the file has the {len(saved)} tensors "
                "but not the module: load it in Python by load_model(directory, backbone=...) with a module like it"
            )
        return
    own = {prefix + name: kind for name, kind in types_of(dict(backbone.state_dict())).items()}
    if own and not saved:
        raise ValueError(f"{path}: backbone was given, but the model was saved without one")
    differing = [
        f"{name!r} is {saved.get(name, 'missing')} in the file and {own.get(name, 'missing')} in the module"
        for name in {**own, **saved}
        if saved.get(name) != own.get(name)
    ]
    if differing:
        more = f"; and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        raise ValueError(f"{path}: backbone is not the one of the model: {'; '.join(differing[:_NAMED])}{more}")


def _empty_model(path: Path, description: str, backbone: nn.Module | None) -> Any:
    """The described model with parameters that have shapes but no memory, but for the backbone's."""
    contents = parse_json_object(description, f"{path}: hyper-parameters")
    if contents.keys() != {"model", "config"}:
        raise ValueError(f"{path}: hyper-parameters must be an object of 'model' and 'config'")
    config = config_of(contents["model"], contents["config"], path)
    if backbone is not None and not MODELS[config.kind][1].takes_backbone:
        raise ValueError(f"{path}: backbone was given, but {config.kind} takes none")
    return _made(config, backbone)
