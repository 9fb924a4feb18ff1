"""Everything an interrupted training needs to go on bit for bit, in one file."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from crossret.evaluation import RetrievalMetrics
from crossret.files.json import parse_json, parse_json_object
from crossret.files.tensors import TensorType, check_types, read_header, read_tensors, write_tensors
from crossret.models.checkpoints import tensors_of, types_of
from crossret.models.protocol import Matcher
from crossret.training.log import STEP_FIELDS

_FORMAT = "crossret training 6"
Optimizer = torch.optim.Adam | torch.optim.Adadelta
# What an optimizer averages of each parameter, beside the "step" that it counts.
_AVERAGES = {torch.optim.Adam: ("exp_avg", "exp_avg_sq"), torch.optim.Adadelta: ("square_avg", "acc_delta")}


@dataclass
class Position:
    """Where a training is.

    Attributes:
        epoch: epochs finished, their validation included.
        epoch_step: steps of the current epoch taken.
        step: optimizer steps taken.
        log_bytes: length of the log up to here.
        sums: loss terms summed since the last line of the log, by name.
        summed: how many steps those are.
        epoch_loss: the loss summed over the current epoch.
        best_epoch: the epoch (from 1) that is the best so far, 0 before the first validation.
        best: its figures by name, as ``RetrievalMetrics.as_dict``.
    """

    epoch: int = 0
    epoch_step: int = 0
    step: int = 0
    log_bytes: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    summed: int = 0
    epoch_loss: float = 0.0
    best_epoch: int = 0
    best: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """What the last bits of a training depend on besides its state.

    Attributes:
        threads: CPU threads, among which sums are divided.
        instructions: the CPU's instruction set that torch uses, as "AVX512".
        device: "cpu", or the name of the GPU.
        ranks: processes that train together.
    """

    threads: int
    instructions: str
    device: str
    ranks: int

    @classmethod
    def this(cls, device: torch.device, ranks: int = 1) -> Machine:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return cls(torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), name, ranks)

    def __str__(self) -> str:
        ranks = "" if self.ranks == 1 else f" on each of {self.ranks} ranks"
        where = "" if self.device == "cpu" else f" and {self.device}"
        return f"{self.threads} thread{'s' if self.threads > 1 else ''} ({self.instructions}){where}{ranks}"


LARGEST_STEP = 2**53  # optimizers count in floating point
_CPU, _CUDA = "random.cpu", "random.cuda"
RandomState = dict[str, Tensor]


def random_state(device: torch.device) -> RandomState:
    """The states of torch's generators that a model on ``device`` draws from: (bytes,) uint8 each."""
    states = {_CPU: torch.get_rng_state()}
    if device.type == "cuda":
        states[_CUDA] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: RandomState, device: torch.device) -> None:
    """The inverse of ``random_state``."""
    torch.set_rng_state(states[_CPU])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[_CUDA], device)


def save_state(
    path: str | os.PathLike[str],
    model: Matcher,
    optimizer: Optimizer,
    random: RandomState,
    position: Position,
    run: dict[str, Any],
    machine: Machine,
) -> None:
    """Write the whole state as one file, which is there as a whole or not at all.

    Args:
        run: what identifies the training (hyper-parameters, data): JSON values, compared on resuming.
    """
    tensors = {f"model.{name}": tensor for name, tensor in tensors_of(model).items()}
    trained = [name for name, parameter in model.named_parameters() if optimizer.state.get(parameter)]
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    parts = {"run": run, "position": asdict(position), "trained": trained, "machine": asdict(machine)}
    metadata = {"format": _FORMAT, **{name: json.dumps(part) for name, part in parts.items()}}
    write_tensors(path, {**tensors, **random}, metadata)


def load_state(
    path: str | os.PathLike[str],
    model: Matcher,
    optimizer: Optimizer,
    random: RandomState,
    run: dict[str, Any],
    epoch_steps: int,
) -> tuple[Position, RandomState, Machine]:
    """Put a saved state into ``model`` and ``optimizer``.

    Returns:
        Where it was, the generators' states, and the machine that wrote it.

    Args:
        random: any state of the generators of this device, for its sizes. A generator of which the file has no state,
            because the training was on another device, is left out of what is returned.
        run: as given to ``save_state``; a difference is an error.
        epoch_steps: steps of an epoch.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is malformed, or the state of another training; names the file and what differs.
    """
    found, metadata = read_header(path)
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path}: not a training checkpoint of this version")
    _compare(path, _parse(path, metadata, "run"), run)
    position = _position(path, _parse(path, metadata, "position"), epoch_steps)
    machine = _machine(path, _parse(path, metadata, "machine"))

    expected = {f"model.{name}": kind for name, kind in types_of(tensors_of(model)).items()}
    # Of another model, as one with another backbone is, all the rest differs as well.
    check_types(path, {name: kind for name, kind in found.items() if name.startswith("model.")}, expected)
    trained = _trained(path, metadata, model)
    averages = _AVERAGES[type(optimizer)]
    for name, parameter in trained.items():
        expected[f"optimizer.step.{name}"] = TensorType((), torch.float32)
        expected.update({f"optimizer.{key}.{name}": TensorType.of(parameter) for key in averages})
    expected.update({name: kind for name, kind in types_of(random).items() if name in found or name == _CPU})
    tensors = read_tensors(path, expected, passed_over=(_CUDA,))
    states = {name: tensors[name] for name in random if name in tensors}
    _check_random(path, states)
    _check_steps(path, {name: tensors[f"optimizer.step.{name}"].item() for name in trained}, position.step)

    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(tensors[f"model.{name}"])
        for name, parameter in trained.items():
            optimizer.state[parameter] = {
                key: tensors[f"optimizer.{key}.{name}"].to(parameter.device) for key in ("step", *averages)
            }
    return position, states, machine


def _parse(path: str | os.PathLike[str], metadata: dict[str, str], key: str) -> dict[str, Any]:
    return parse_json_object(_part(path, metadata, key), f"{path}: its {key}")


def _part(path: str | os.PathLike[str], metadata: dict[str, str], key: str) -> str:
    if key not in metadata:
        raise ValueError(f"{path}: has no {key!r}")
    return metadata[key]


def _trained(path: str | os.PathLike[str], metadata: dict[str, str], model: Matcher) -> dict[str, nn.Parameter]:
    """The parameters of which the optimizer has a state; one that no step has trained has none."""
    names = parse_json(_part(path, metadata, "trained"), f"{path}: its trained")
    parameters = dict(model.named_parameters())
    if not isinstance(names, list) or not all(isinstance(name, str) and name in parameters for name in names):
        raise ValueError(f"{path}: its trained must be a list of names of the model's parameters")
    return {name: parameters[name] for name in names}


def _check_steps(path: str | os.PathLike[str], counts: dict[str, float], steps: int) -> None:
    """Raise a ValueError where a parameter was not trained in a whole number of the training's steps."""
    for name, count in counts.items():
        if not 1 <= count <= steps or not count.is_integer():
            raise ValueError(f"{path}: tensor 'optimizer.step.{name}' is {count}, not a step of 1 to {steps}")
    if steps and not counts:
        raise ValueError(f"{path}: no parameter was trained in {steps} steps")


def _compare(path: str | os.PathLike[str], saved: dict[str, Any], run: dict[str, Any]) -> None:
    for name in {**run, **saved}:
        if saved.get(name) != run.get(name):
            raise ValueError(f"{path}: was trained with {name} = {saved.get(name)}, not {run.get(name)}")


def _machine(path: str | os.PathLike[str], values: dict[str, Any]) -> Machine:
    kinds = {"threads": int, "instructions": str, "device": str, "ranks": int}
    if {name: type(value) for name, value in values.items()} != kinds:
        raise ValueError(
            f"{path}: its machine must be {', '.join(f'{name!r} ({kind.__name__})' for name, kind in kinds.items())}"
        )
    return Machine(**values)


def _check_random(path: str | os.PathLike[str], states: RandomState) -> None:
    """Raise a ValueError where a generator does not take its state."""
    for name, state in states.items():
        try:
            torch.Generator(name.removeprefix("random.")).set_state(state)
        except RuntimeError as error:
            raise ValueError(f"{path}: tensor {name!r} is no state of the generator ({error})") from error


def _position(path: str | os.PathLike[str], values: dict[str, Any], epoch_steps: int) -> Position:
    kinds = {part.name: type(getattr(Position(), part.name)) for part in fields(Position)}
    if values.keys() != kinds.keys():
        raise ValueError(f"{path}: its position must have the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = values[name]
        if type(value) is not kind or (kind is int and value < 0):
            raise ValueError(f"{path}: its position's {name} is {value!r}, which is no valid {kind.__name__}")
        if kind is dict and not all(type(number) is float and math.isfinite(number) for number in value.values()):
            raise ValueError(f"{path}: its position's {name} must hold numbers")
    position = Position(**values)
    if problem := _contradiction(position, epoch_steps):
        raise ValueError(f"{path}: its position contradicts itself: {problem}")
    return position


def _contradiction(position: Position, epoch_steps: int) -> str | None:
    """What no training with so many steps an epoch could have written, if anything."""
    if position.epoch_step > epoch_steps:
        return f"step {position.epoch_step} of an epoch of {epoch_steps}"
    if position.step != position.epoch * epoch_steps + position.epoch_step:
        place = f"step {position.epoch_step} of epoch {position.epoch + 1}"
        return f"step {position.step} at {place}, {epoch_steps} steps each"
    if position.step > LARGEST_STEP:
        return f"step {position.step}, beyond {LARGEST_STEP}"
    if position.epoch and not position.log_bytes:
        return f"{position.epoch} epochs are in a log of no bytes"
    if position.summed > position.step or bool(position.summed) != ("loss" in position.sums):
        return f"terms of {position.summed} steps are summed at step {position.step}"
    if reserved := position.sums.keys() & set(STEP_FIELDS):
        return f"{sorted(reserved)[0]!r} is no term of the loss"
    if not math.isfinite(position.epoch_loss):
        return f"epoch_loss {position.epoch_loss}"
    if position.best_epoch > position.epoch or (position.epoch > 0) != (position.best_epoch > 0):
        return f"epoch {position.best_epoch} was best of {position.epoch}"
    if not _are_figures(position.best) if position.best_epoch else position.best:
        return f"'best' does not hold the figures of epoch {position.best_epoch}"
    return None


def _are_figures(best: dict[str, float]) -> bool:
    try:
        return RetrievalMetrics.from_dict(best).as_dict() == best
    except KeyError:
        return False
