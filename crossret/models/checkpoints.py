"""Model directories: weights, hyper-parameters and vocabulary on the disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from crossret.data.named_encoder import NamedEncoder
from crossret.data.vocabulary import Vocabulary
from crossret.extraction.choosing import load_picture_encoder, load_text_encoder
from crossret.files.atomic import atomic_write
from crossret.files.json import read_json_object
from crossret.files.tensors import TensorType, digest_of_tensors, read_header, read_tensors, write_tensors
from crossret.hyperparameters import ModelConfig
from crossret.losses import matching_loss
from crossret.models.base import ENCODER, TEXT_ENCODER, captions_by, pretrained_parts
from crossret.models.kinds import MODELS
from crossret.models.protocol import Matcher
from crossret.models.shapes import shapes_alone

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
CAPTIONS_BY = "captions_by.json"
_BACKBONE = "backbone"  # the part of a model that is a module of the user's own
_LOSS = "matching_loss."  # likewise, of the names of its loss's parameters
_NAMED = 5  # tensors that an error names
BEST = "best"  # in the directory of a training


def save_model(model: Matcher, directory: str | os.PathLike[str], vocabulary: Vocabulary | None) -> None:
    """Write a model into ``directory``, which is made if needed.

    ``config.json`` has the hyper-parameters, ``vocabulary.json`` the words (the published code's format), which a model
    that reads tokens of captions has not, and
    ``model.safetensors`` the weights: what ``load_model`` reads; of a model with an encoder of pictures ``encoder`` has
    what that is, of one of texts ``text_encoder``; of one trained on stored tokens of captions ``captions_by.json``
    names the encoder that made them. The weights are replaced by one rename, and last;
    where there is another model, its weights go first, so that a kill leaves none of them with this one's words.

    Raises:
        ValueError: the vocabulary is not as large as the model's, or one of them has none.
        OSError: the directory cannot be written.
    """
    folder = Path(directory)
    check_vocabulary(model, vocabulary)
    parts = {CONFIG: describe_model(model).encode()}
    if vocabulary is not None:
        parts[VOCABULARY] = vocabulary.to_json().encode()
    for part, encoder in pretrained_parts(model).items():
        parts |= {f"{part}/{name}": contents for name, contents in encoder.reader.files().items()}
    if (named := captions_by(model)) is not None:
        parts[CAPTIONS_BY] = json.dumps(dataclasses.asdict(named), indent=1).encode()
    for place in {(folder / name).parent for name in parts}:
        place.mkdir(parents=True, exist_ok=True)
    changed = [name for name, contents in parts.items() if not _holds(folder / name, contents)]
    try:
        before = read_header(folder / WEIGHTS)[0]
    except (OSError, ValueError):  # there is none, or it is damaged
        before = {}
    kept = {Path(name).parts[0] for name in parts}
    left = [folder / part for part in (ENCODER, TEXT_ENCODER) if part not in kept and _has(part, before)]
    left += [folder / name for name in (VOCABULARY, CAPTIONS_BY) if before and name not in kept]
    left = [path for path in left if path.exists()]
    if changed or left:
        (folder / WEIGHTS).unlink(missing_ok=True)
    for path in left:  # files of the model that was there
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    for name in changed:
        with atomic_write(folder / name) as file:
            file.write(parts[name])
    write_tensors(folder / WEIGHTS, tensors_of(model), {"format": "pt"})


def load_model(
    directory: str | os.PathLike[str], *, backbone: nn.Module | None = None, text_encoder: str | None = None
) -> tuple[Any, Vocabulary | None]:
    """Read what ``save_model`` wrote: (model in evaluation mode on the CPU, vocabulary; None where it reads tokens).

    Nothing is allocated before the names, shapes and dtypes of the tensors agree with the hyper-parameters.

    Args:
        directory: where the model is.
        backbone: a module like that of a model that was saved with one. It becomes a part of the model, with the saved
            weights and buffers in the place of its own; which of its weights require a gradient stays as it is.
        text_encoder: place of the encoder that made the stored tokens that the model was trained on; by default
            where it was. It is loaded when a new caption is read.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: one is malformed, or they do not belong together; names the file and the tensor or field. The model
            has a backbone and none is given, or one is and the model has none, or another: names the tensors.
    """
    folder = Path(directory)
    path = folder / WEIGHTS
    found, _ = read_header(path)
    contents = read_json_object(folder / CONFIG)
    if contents.keys() != {"model", "config"}:
        raise ValueError(f"{folder / CONFIG}: must be an object of 'model' and 'config'")
    config = config_of(contents["model"], contents["config"], folder / CONFIG)
    if backbone is not None and not MODELS[config.kind][1].takes_backbone:
        raise ValueError(f"{folder / CONFIG}: backbone was given, but {config.kind} takes none")
    model = _made(config, backbone)
    if _has(ENCODER, found):
        model.read_pictures_by(load_picture_encoder(folder / ENCODER, weights=False))
    if _has(TEXT_ENCODER, found):
        model.read_texts_by(load_text_encoder(folder / TEXT_ENCODER, weights=False))
    if (folder / CAPTIONS_BY).exists():
        named = NamedEncoder.of_json(read_json_object(folder / CAPTIONS_BY), str(folder / CAPTIONS_BY))
        model.captions_by = named if text_encoder is None else NamedEncoder.of(text_encoder, named.identity)
    elif text_encoder is not None:
        raise ValueError(
            f"{folder}: text_encoder was given, but the model was not trained on tokens of a known encoder"
        )
    _check_backbone(path, found, backbone)
    vocabulary = None if config.text_dim is not None else Vocabulary.load(folder / VOCABULARY)
    try:
        check_vocabulary(model, vocabulary)
    except ValueError as error:
        raise ValueError(f"{folder / VOCABULARY}: {error}") from error
    weights = read_tensors(path, types_of(tensors_of(model)))
    if backbone is not None:
        prefix = f"{_BACKBONE}."
        own = {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
        # Copied, as its parts may share weights; assigned where there is nothing to copy into.
        backbone.load_state_dict(own, assign=any(tensor.is_meta for tensor in backbone.state_dict().values()))
        backbone.cpu()
    model.load_state_dict(weights, assign=True, strict=backbone is None)
    return model.eval(), vocabulary


def model_directory(run: str | os.PathLike[str]) -> Path:
    """Where the model is: in the directory of a training that of its best epoch, else the directory itself."""
    best = Path(run) / BEST
    return best if best.is_dir() else Path(run)


def reads_pictures(directory: str | os.PathLike[str]) -> bool:
    """Whether a saved model has an encoder of pictures; False where there is no model."""
    path = Path(directory) / WEIGHTS
    return path.exists() and _has(ENCODER, read_header(path)[0])


def with_config(model: Matcher, config: ModelConfig, place: str) -> Any:
    """A model with the weights of another and with hyper-parameters that differ in what changes no weight's shape.

    A loss of another kind, or that is to start otherwise, starts with parameters of its own.

    Raises:
        ValueError: the weights of ``model`` do not fit; names ``place``, where it is from, and the first such weight.
    """
    changed = _made(config, getattr(model, _BACKBONE, None))
    for part, encoder in pretrained_parts(model).items():
        setattr(changed, part, encoder)
    changed.captions_by = captions_by(model)
    weights, wanted = tensors_of(model), types_of(tensors_of(changed))
    if any(getattr(model.config, name) != getattr(config, name) for name in ("loss", "loss_scale", "loss_bias")):
        own = {name: name.rpartition(_LOSS)[2] for name in wanted if _LOSS in name}
        start = matching_loss(config).state_dict()
        weights = {name: tensor for name, tensor in weights.items() if _LOSS not in name}
        weights |= {name: start[parameter] for name, parameter in own.items()}
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


def check_vocabulary(model: Matcher, vocabulary: Vocabulary | None) -> None:
    """Raise a ValueError where the vocabulary is not as large as the model's, or one of them has none."""
    size, dim = model.config.vocabulary_size, model.config.text_dim
    if vocabulary is None:
        if dim is None:
            raise ValueError(f"captions are tokens, but the model reads {size} words")
    elif dim is not None:
        raise ValueError(f"captions are words, but the model reads tokens of {dim} numbers")
    elif len(vocabulary) != size:
        raise ValueError(f"the vocabulary has {len(vocabulary)} words, but the model was made for {size}")


def digest(vocabulary: Vocabulary | None) -> str | None:
    """A fingerprint of the words and their numbers, if there are any."""
    return None if vocabulary is None else hashlib.sha256("\n".join(vocabulary.idx2word).encode()).hexdigest()


def digest_of_weights(model: Matcher | nn.Module) -> str:
    """A fingerprint of a model's parameters and buffers."""
    return digest_of_tensors(tensors_of(model))


def tensors_of(model: Matcher | nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(model.state_dict())


def types_of(tensors: dict[str, Tensor]) -> dict[str, TensorType]:
    """Shape and dtype of each tensor."""
    return {name: TensorType.of(tensor) for name, tensor in tensors.items()}


def _has(part: str, tensors: Iterable[str]) -> bool:
    return any(name.startswith(f"{part}.") for name in tensors)


def _holds(path: Path, contents: bytes) -> bool:
    return path.is_file() and path.read_bytes() == contents


def _made(config: ModelConfig, backbone: nn.Module | None) -> Any:
    """A model with parameters that have shapes but no memory, but for the backbone's."""
    kept = {} if backbone is None else {_BACKBONE: backbone}
    with shapes_alone():
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
