"""Everything an interrupted training needs to go on bit for bit, in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, get_origin, get_type_hints

import torch

from crossret.files.json import parse_json_object
from crossret.files.tensors import TensorType, check_types, read_header, read_tensors, write_tensors
from crossret.models.checkpoints import tensors_of, types_of
from crossret.models.protocol import Matcher
from crossret.training.optimizer import AVERAGES, Optimizer
from crossret.training.randomness import CPU, CUDA, RandomState

_FORMAT = "crossret training 7"
Record = TypeVar("Record")


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

    def take_step(self, terms: Mapping[str, float]) -> None:
        """A step was taken, whose loss has these terms."""
        self.epoch_step += 1
        self.step += 1
        self.epoch_loss += terms["loss"]
        self.summed += 1
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def take_means(self) -> dict[str, float]:
        """The terms' means since the last line of the log, which is to have them."""
        means = {name: total / self.summed for name, total in self.sums.items()}
        self.sums, self.summed = {}, 0
        return means


@dataclass(frozen=True)
class Machine:
    """Facts that the last bits of a training depend on besides its state.

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
        run: identity of the training (hyper-parameters, data): JSON values, compared on resuming.
    """
    tensors = {f"model.{name}": tensor for name, tensor in tensors_of(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    parts = {"run": run, "position": asdict(position), "machine": asdict(machine)}
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
    position = _of_fields(Position, _parse(path, metadata, "position"), f"{path}: its position")
    if position.step != position.epoch * epoch_steps + position.epoch_step:
        raise ValueError(f"{path}: its position is no step of epochs of {epoch_steps}")
    machine = _of_fields(Machine, _parse(path, metadata, "machine"), f"{path}: its machine")

    expected = {f"model.{name}": kind for name, kind in types_of(tensors_of(model)).items()}
    # The model comes first: where it is another, as one with another backbone is, all the rest differs as well.
    check_types(path, {name: kind for name, kind in found.items() if name.startswith("model.")}, expected)
    # A parameter that no step has trained has no state.
    trained = {name: each for name, each in model.named_parameters() if f"optimizer.step.{name}" in found}
    averages = AVERAGES[type(optimizer)]
    for name, parameter in trained.items():
        expected[f"optimizer.step.{name}"] = TensorType((), torch.float32)
        expected.update({f"optimizer.{key}.{name}": TensorType.of(parameter) for key in averages})
    expected.update({name: kind for name, kind in types_of(random).items() if name in found or name == CPU})
    tensors = read_tensors(path, expected, passed_over=(CUDA,))
    states = {name: tensors[name] for name in random if name in tensors}
    for name, state in states.items():
        try:
            torch.Generator(name.removeprefix("random.")).set_state(state)
        except RuntimeError as error:  # which PyTorch raises of bytes that none of its generators has
            raise ValueError(f"{path}: tensor {name!r} is no state of a generator ({error})") from error

    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(tensors[f"model.{name}"])
        for name, parameter in trained.items():
            optimizer.state[parameter] = {
                key: tensors[f"optimizer.{key}.{name}"].to(parameter.device) for key in ("step", *averages)
            }
    return position, states, machine


def _parse(path: str | os.PathLike[str], metadata: dict[str, str], key: str) -> dict[str, Any]:
    if key not in metadata:
        raise ValueError(f"{path}: has no {key!r}")
    return parse_json_object(metadata[key], f"{path}: its {key}")


def _compare(path: str | os.PathLike[str], saved: dict[str, Any], run: dict[str, Any]) -> None:
    for name in {**run, **saved}:
        if saved.get(name) != run.get(name):
            raise ValueError(f"{path}: was trained with {name} = {saved.get(name)}, not {run.get(name)}")


def _of_fields(kind: type[Record], values: dict[str, Any], place: str) -> Record:
    """A dataclass of what ``asdict`` made of one, whose fields are all there and of their types."""
    kinds = {name: get_origin(hint) or hint for name, hint in get_type_hints(kind).items()}
    if {name: type(value) for name, value in values.items()} != kinds:
        raise ValueError(f"{place} must have {', '.join(f'{name} ({hint.__name__})' for name, hint in kinds.items())}")
    return kind(**values)
