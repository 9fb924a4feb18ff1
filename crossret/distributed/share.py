"""The rows of a batch that are this rank's, and what the loss of a batch needs of the others'."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from crossret.distributed.collectives import exchanged_scores, gathered_rows
from crossret.distributed.group import ALONE, Group


@dataclass(frozen=True)
class Share:
    """A contiguous part of a batch: the ranks' parts in the order of the ranks are the batch. A part may be empty.

    Attributes:
        group: the ranks.
        counts: how many items of the batch each has.
    """

    group: Group
    counts: tuple[int, ...]

    @classmethod
    def whole(cls, n: int) -> Share:
        """All ``n`` items, of a process that is alone."""
        return cls(ALONE, (n,))

    @classmethod
    def cut(cls, group: Group, total: int) -> Share:
        """Parts of ``total`` items that differ by one at most; nothing is sent."""
        ends = [total * (rank + 1) // group.size for rank in range(group.size)]
        return cls(group, tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False)))

    @classmethod
    def of(cls, group: Group, n: int) -> Share:
        """Where every rank brings as many items as it has, here ``n``: each learns the others' numbers."""
        return cls(group, tuple(count for (count,) in group.numbers([n])))

    @property
    def n(self) -> int:
        """This rank's items."""
        return self.counts[self.group.rank]

    @property
    def total(self) -> int:
        """The items of the batch."""
        return sum(self.counts)

    @property
    def offset(self) -> int:
        """The place of this rank's first item in the batch."""
        return sum(self.counts[: self.group.rank])

    @property
    def rows(self) -> slice:
        """This rank's items in the batch."""
        return slice(self.offset, self.offset + self.n)

    @property
    def encoded_rows(self) -> slice:
        """The items that this rank encodes, of which the first ``n`` are its own.

        Where it has none it encodes the first of the batch: the others wait for it in their backward pass, which must
        go the same ways here, and shapes are known from what is encoded alone.
        """
        return self.rows if self.n else slice(0, 1)

    def gathered(self, tensor: Tensor) -> Tensor:
        """(n, …) of this rank to (total, …) of the batch, differentiable; shapes agree but in the first size.

        The gradient is the sum of those of all ranks, so that no rank needs to weigh its loss.
        """
        self.check("tensor", tensor, (self.n, *tensor.shape[1:]))
        return gathered_rows(tensor, self.group, self.counts)

    def exchanged(self, scores: Tensor) -> Tensor:
        """This rank's rows (n, total) of the batch's matrix to its columns (total, n), differentiable."""
        self.check("scores", scores, (self.n, self.total))
        return exchanged_scores(scores, self.group, self.counts)

    def check(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Raise a ValueError where a tensor of this rank has another shape."""
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} of rank {self.group.rank} must have shape {shape}, its share of a batch of {self.total}, "
                f"got {tuple(tensor.shape)}"
            )
