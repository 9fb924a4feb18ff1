"""The group of processes that torchrun has started this one in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from crossret.distributed.group import ALONE, Group

# Seconds to wait: beyond, backends count milliseconds past their integers, and time out at once.
_LONGEST = 366 * 86400.0
_MOST_RANKS = 2**16  # beyond any training; torch.distributed would wait for them
_LONGEST_SHOWN = 40  # characters of a value in an error


def started_by_torchrun() -> bool:
    """Whether the environment names other processes to train with.

    Raises:
        ValueError: one of its WORLD_SIZE, RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT is missing beside the others or
            is none; names it.
    """
    return _place()[1] > 1


def is_first() -> bool:
    """Whether this process is the one that tells the user anything: the first of torchrun's, or the only one."""
    return _place()[0] == 0


def own_device(device: torch.device) -> torch.device:
    """Where this process computes, if it is to compute on such a device: torchrun's have a CUDA device each.

    Raises:
        ValueError: one CUDA device is named for all of them, or there are fewer than processes on this machine; or as
            ``started_by_torchrun``, whatever the device.
    """
    if not started_by_torchrun() or device.type != "cuda":
        return device
    if str(device) != device.type:
        raise ValueError(f"device {device}: ranks on one machine take a CUDA device each; leave its number out")
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise ValueError(f"rank {number} of this machine has no CUDA device, of which there are {count}; take the CPU")
    return torch.device("cuda", number)


@contextmanager
def joined(device: torch.device, seconds: float) -> Iterator[Group]:
    """Be one of torchrun's processes while the block runs, by NCCL on a CUDA device and by Gloo else.

    Without torchrun this process is alone.

    Args:
        device: where this process computes; on a machine no two by NCCL on the same.
        seconds: how long to wait for another process before it counts as lost.

    Raises:
        ValueError: ``seconds`` is not above 0 and at most a year, or as ``started_by_torchrun``. RankLost: the others
            were not there in time.
    """
    if not started_by_torchrun():
        yield ALONE
        return
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"the rank timeout must be above 0 and at most {_LONGEST:.0f} seconds, not {seconds}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with Group(*_place()).talking("meeting of the ranks"):
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    # Where the block fails the others are perhaps gone, and the end of this process is what they have to learn of.
    group = Group.current()
    yield group
    with group.talking("end"):
        dist.barrier()
        dist.destroy_process_group()


def _place() -> tuple[int, int]:
    """The rank of this process and how many there are, as the environment has them; (0, 1) without torchrun.

    All that is read of the environment is looked at, before torch.distributed says of it what it likes or waits for
    processes that are nowhere.
    """
    given = {name: name in os.environ for name in ("WORLD_SIZE", "RANK")}
    if not any(given.values()):
        return 0, 1
    for name, there in given.items():
        if not there:
            (other,) = given.keys() - {name}
            raise ValueError(f"the environment has {other}={_shown(other)}, but no {name}: torchrun sets both")
    size = _number("WORLD_SIZE", 1, _MOST_RANKS)
    rank = _number("RANK", 0, size - 1)
    if "LOCAL_RANK" in os.environ:
        _number("LOCAL_RANK", 0, size - 1)
    if size > 1:
        address = os.environ.get("MASTER_ADDR", "")
        if not address or not address.isprintable() or " " in address:
            raise ValueError(f"the environment's MASTER_ADDR must be where the ranks meet, not {_shown('MASTER_ADDR')}")
        _number("MASTER_PORT", 1, 65535)
    return rank, size


def _number(name: str, least: int, most: int) -> int:
    """A whole number of the environment, in digits alone: int() takes " 2", "1_0" and digits of other scripts."""
    value = os.environ.get(name, "")
    if not re.fullmatch("[0-9]{1,9}", value) or not least <= int(value) <= most:
        raise ValueError(f"the environment's {name} must be a whole number from {least} to {most}, not {_shown(name)}")
    return int(value)


def _shown(name: str) -> str:
    value = os.environ.get(name)
    return "unset" if value is None else repr(value[:_LONGEST_SHOWN])
