"""Everything an interrupted training needs to go on bit for bit, in one file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from crossret.checkpoints import tensors_of, types_of
from crossret.models.protocol import Matcher
from crossret.tensor_files import TensorType, read_header, read_tensors, write_tensors

_FORMAT = "crossret training 1"
_ADAM = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Position:
    """Where a training is.

    Attributes:
        epoch: epochs finished, their validation included.
        batch: batches of the current epoch finished.
        step: optimizer steps taken.
        log_bytes: length of the log up to here.
        sums: loss terms summed since the last line of the log, by name.
        summed: how many steps those are.
        epoch_loss: the loss summed over the current epoch.
        best_epoch: the epoch (from 1) with the highest rsum so far, 0 before the first validation.
        best: its figures by name, as ``RetrievalMetrics.as_dict``.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    log_bytes: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    summed: int = 0
    epoch_loss: float = 0.0
    best_epoch: int = 0
    best: dict[str, float] = field(default_factory=dict)


RandomState = dict[str, Tensor]


def random_state(device: torch.device) -> RandomState:
    """The states of torch's generators that a model on ``device`` draws from: (bytes,) uint8 each."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: RandomState, device: torch.device) -> None:
    """The inverse of ``random_state``."""
    torch.set_rng_state(states["random.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["random.cuda"], device)


def save_state(
    path: str | os.PathLike[str],
    model: Matcher,
    optimizer: torch.optim.Adam,
    random: RandomState,
    position: Position,
    run: dict[str, Any],
) -> None:
    """Write the whole state as one file, which is there as a whole or not at all.

    Args:
        run: what identifies the training (hyper-parameters, data): JSON values, compared on resuming.
    """
    tensors = {f"model.{name}": tensor for name, tensor in tensors_of(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"adam.{key}.{name}"] = value
    metadata = {"format": _FORMAT, "run": json.dumps(run), "position": json.dumps(asdict(position))}
    write_tensors(path, {**tensors, **random}, metadata)


def load_state(
    path: str | os.PathLike[str],
    model: Matcher,
    optimizer: torch.optim.Adam,
    random: RandomState,
    run: dict[str, Any],
) -> tuple[Position, RandomState]:
    """Put a saved state into ``model`` and ``optimizer``; returns where it was and the generators' states.

    Args:
        random: any state of the same generators, for its sizes.
        run: as given to ``save_state``; a difference is an error.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is malformed, or the state of another training; names the file and what differs.
    """
    _, metadata = read_header(path)
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path}: not a training checkpoint of this version")
    _compare(path, _parse(path, metadata, "run"), run)
    position = _position(path, _parse(path, metadata, "position"))

    expected = {f"model.{name}": kind for name, kind in types_of(tensors_of(model)).items()}
    parameters = dict(model.named_parameters()) if position.step else {}
    for name, parameter in parameters.items():
        expected[f"adam.step.{name}"] = TensorType((), torch.float32)
        expected[f"adam.exp_avg.{name}"] = expected[f"adam.exp_avg_sq.{name}"] = TensorType.of(parameter)
    tensors = read_tensors(path, {**expected, **types_of(random)})

    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(tensors[f"model.{name}"])
        for name, parameter in parameters.items():
            optimizer.state[parameter] = {key: tensors[f"adam.{key}.{name}"].to(parameter.device) for key in _ADAM}
    return position, {name: tensors[name] for name in random}


def _parse(path: str | os.PathLike[str], metadata: dict[str, str], key: str) -> dict[str, Any]:
    try:
        values = json.loads(metadata[key])
    except (KeyError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: its {key!r} is not readable ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: its {key!r} is not an object")
    return values


def _compare(path: str | os.PathLike[str], saved: dict[str, Any], run: dict[str, Any]) -> None:
    for name in sorted(saved.keys() | run.keys()):
        if saved.get(name) != run.get(name):
            raise ValueError(f"{path}: was trained with {name} = {saved.get(name)}, not {run.get(name)}")


def _position(path: str | os.PathLike[str], values: dict[str, Any]) -> Position:
    kinds = {part.name: type(getattr(Position(), part.name)) for part in fields(Position)}
    if values.keys() != kinds.keys():
        raise ValueError(f"{path}: its position must have the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = values[name]
        if type(value) is not kind or (kind is int and value < 0):
            raise ValueError(f"{path}: its position's {name} is {value!r}, which is no valid {kind.__name__}")
        if kind is dict and not all(type(number) is float for number in value.values()):
            raise ValueError(f"{path}: its position's {name} must hold numbers")
    return Position(**values)
