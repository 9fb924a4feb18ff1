"""The processes that train together: who they are, and what one of them says to the others."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")

_CPU = torch.device("cpu")


class RankLost(ConnectionError):
    """Another process of the group has ended, or has not answered within the group's timeout."""


@dataclass(frozen=True)
class Group:
    """This process among those that train together; by default it is alone, and nothing is sent.

    All processes call the same methods in the same order: each waits for the others. Where one is lost, those that wait
    raise ``RankLost``.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
        device: where tensors are that are sent: a CUDA device for NCCL, else the CPU.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU

    @classmethod
    def current(cls) -> Group:
        """The default process group of ``torch.distributed``; alone where there is none."""
        if not (dist.is_available() and dist.is_initialized()):
            return ALONE
        device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else _CPU
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def summed(self, values: Sequence[float]) -> list[float]:
        """Sum over all ranks at every place, the same bits on each rank."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        with self.talking("sum"):
            dist.all_reduce(numbers)
        return numbers.tolist()

    def numbers(self, values: Sequence[int]) -> list[list[int]]:
        """The whole numbers of every rank, as many of each, in the order of the ranks."""
        if self.size == 1:
            return [list(values)]
        own = torch.tensor(values, dtype=torch.int64, device=self.device)
        of_all = own.new_empty(self.size, len(values))
        with self.talking("exchange of sizes"):
            dist.all_gather(list(of_all.unbind()), own)
        return of_all.tolist()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every tensor, in place, the values that it has on the first rank."""
        if self.size == 1:
            return
        with self.talking("broadcast"), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().to(self.device).contiguous()
                dist.broadcast(sent, 0)
                tensor.copy_(sent)

    def first(self, action: Callable[[], Value]) -> Value:
        """Result of ``action`` on the first rank, where alone it is done; what it raises, all ranks raise.

        The value is pickled, and so is an Exception; one that does not survive it is a RuntimeError of the same words
        to the others. Another interruption (KeyboardInterrupt) is that rank's own.
        """
        if self.size == 1:
            return action()
        message: list[bytes] = [b""]
        error: Exception | None = None
        if self.is_first:
            try:
                message = [pickle.dumps((action(), None))]
            except Exception as raised:
                error = raised
                message = [pickle.dumps((None, _sendable(raised)))]
        with self.talking("message of rank 0"):
            dist.broadcast_object_list(message, 0)
        if error is not None:
            raise error
        value, raised_there = pickle.loads(message[0])
        if raised_there is not None:
            raise raised_there
        return value

    def values(self, value: Value) -> list[Value]:
        """The value of every rank, pickled, in the order of the ranks."""
        if self.size == 1:
            return [value]
        of_all: list[Value | None] = [None] * self.size
        with self.talking("exchange of messages"):
            dist.all_gather_object(of_all, value)
        return of_all  # type: ignore[return-value]

    def collected(self, tensor: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """The rows of every rank, (counts[rank], …) each, on the CPU of the first; nothing on others.

        Args:
            tensor: this rank's rows, alike on all ranks but in the first size.
        """
        if not self.is_first:
            if len(tensor):
                with self.talking("sending of rows"):
                    dist.send(tensor.to(self.device).contiguous(), 0)
            return []
        parts = [tensor.cpu()]
        for rank, count in enumerate(counts[1:], start=1):
            part = torch.empty(count, *tensor.shape[1:], dtype=tensor.dtype, device=self.device)
            if count:
                with self.talking(f"receiving of rows from rank {rank}"):
                    dist.recv(part, rank)
            parts.append(part.cpu())
        return parts

    @contextmanager
    def talking(self, what: str) -> Iterator[None]:
        """Where collectives of the block fail, which they do for want of a peer, a ``RankLost`` says so."""
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of {self.size}: {what} failed, as another rank has ended or does not answer "
                f"({_reason(error)})"
            ) from error


ALONE = Group()


def _sendable(error: Exception) -> Exception:
    """The error, or one with its words where it cannot be pickled and made again by other ranks."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _reason(error: RuntimeError) -> str:
    """The first sentence of what a backend says, without the place in its source."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).strip().splitlines()[0])
    return line.split(". ")[0]
