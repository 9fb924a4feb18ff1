"""Encoded images or captions, as a model keeps them until they are scored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret.data.batches import check_lengths
from crossret.distributed import Share
from crossret.files.tensors import read_header, read_tensors, write_tensors

_VECTOR = "vectors."


@dataclass(frozen=True)
class Encoded:
    """Encoded images or captions, one entry an item.

    Attributes:
        sequences: (n, L, D) floating point, the regions or words of each item, padded to the longest.
        lengths: (n,) int64, how many of the L rows belong to the item, each in 1..L.
        vectors: more that a model keeps of every item, by name, each (n, …); may be empty.

    Raises:
        TypeError: a field is no tensor of the right kind.
        ValueError: shapes do not agree, or a length in the host's memory is out of range (the message names the item).
    """

    sequences: Tensor
    lengths: Tensor
    vectors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sequences.is_floating_point():
            raise TypeError(f"sequences must be floating point, got {self.sequences.dtype}")
        if self.sequences.dim() != 3:
            raise ValueError(f"sequences must have shape (n, L, D), got {tuple(self.sequences.shape)}")
        if self.lengths.dtype != torch.int64:
            raise TypeError(f"lengths must be int64, got {self.lengths.dtype}")
        n = len(self.sequences)
        if self.lengths.shape != (n,):
            raise ValueError(f"lengths must have shape ({n},), one an item, got {tuple(self.lengths.shape)}")
        for name, vector in self.vectors.items():
            if vector.dim() == 0 or len(vector) != n:
                raise ValueError(f"vectors[{name!r}] must have {n} entries, one an item, got {tuple(vector.shape)}")
        if self.lengths.is_cpu:  # a GPU's are looked at by what scores them: each look waits for the device
            check_lengths(self.lengths, self.sequences.shape[1])

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, items: slice | Tensor) -> Encoded:
        """The items of a slice (a view) or of an int64 tensor of indices (a copy)."""
        if not isinstance(items, (slice, Tensor)):
            raise TypeError(f"an Encoded is indexed by a slice or an int64 tensor, not {type(items).__name__}")
        return self._map(lambda tensor: tensor[items])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Encoded:
        """These items on another device; ``dtype`` is for sequences and floating-point vectors, never for lengths."""
        return self._map(
            lambda tensor: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
        )

    def detach(self) -> Encoded:
        """These items without history, so that no gradient flows back to the encoder."""
        return self._map(Tensor.detach)

    def cpu(self) -> Encoded:
        """These items in main memory."""
        return self.to("cpu")

    @staticmethod
    def concat(parts: Sequence[Encoded]) -> Encoded:
        """All items of ``parts`` in order, padded with zeros to the longest.

        So are vectors of one number a row, as far as they differ in length: with zeros, or with -1 where they are
        places, integers. Parts of different dtypes become the widest.

        Raises:
            ValueError: there are no parts, or they differ in D or in the names of their vectors.
        """
        if not parts:
            raise ValueError("parts: nothing to concatenate")
        first = parts[0]
        for index, part in enumerate(parts):
            if part.sequences.shape[2] != first.sequences.shape[2] or part.vectors.keys() != first.vectors.keys():
                raise ValueError(f"parts[{index}] differs from parts[0] in D or in the names of its vectors")
        n = sum(len(part) for part in parts)
        longest = max(part.sequences.shape[1] for part in parts)
        dtype = _widest(part.sequences.dtype for part in parts)
        sequences = first.sequences.new_zeros(n, longest, first.sequences.shape[2], dtype=dtype)
        begin = 0
        for part in parts:
            sequences[begin : begin + len(part), : part.sequences.shape[1]] = part.sequences
            begin += len(part)
        lengths = torch.cat([part.lengths for part in parts])
        vectors = {name: _joined([part.vectors[name] for part in parts]) for name in first.vectors}
        return Encoded(sequences, lengths, vectors)

    def trimmed(self) -> Encoded:
        """These items without the padding that none of them needs, which ``concat`` added for others: of sequences,
        and of vectors of places, -1."""
        vectors = {}
        for name, vector in self.vectors.items():
            if vector.dim() == 2 and not vector.is_floating_point():
                used = (vector >= 0).any(0).nonzero()
                vector = vector[:, : int(used.max()) + 1 if len(used) else 0]
            vectors[name] = vector
        return Encoded(self.sequences[:, : int(self.lengths.max())], self.lengths, vectors)

    def gathered(self, share: Share) -> Encoded:
        """The items of all ranks, in the order of the ranks, of which ``self`` is this rank's share; differentiable.

        Gradients are as ``Share.gathered`` has them. All are padded as by ``concat``, and of the widest dtype of any
        rank's.

        Raises:
            ValueError: they are not as many as the share says.
        """
        if share.group.size == 1:
            return self
        names = sorted(self.vectors)
        parts = [self.sequences, *(self.vectors[name] for name in names)]
        widths = [part.shape[1] if part.dim() > 1 else 0 for part in parts]
        kinds = [_PRECISIONS.index(part.dtype) if part.is_floating_point() else -1 for part in parts]
        of_all = torch.tensor(share.group.numbers([*widths, *kinds])).unflatten(1, (2, len(parts)))
        gathered = []
        for part, width, kinds_of_part in zip(
            parts, of_all[:, 0].amax(0).tolist(), of_all[:, 1].T.tolist(), strict=True
        ):
            if part.dim() > 1:
                part = _widened(part, width)
            if part.is_floating_point():
                part = part.to(_widest(_PRECISIONS[kind] for kind in kinds_of_part))
            gathered.append(share.gathered(part))
        return Encoded(gathered[0], share.gathered(self.lengths), dict(zip(names, gathered[1:], strict=True)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically."""
        vectors = {_VECTOR + name: vector for name, vector in self.vectors.items()}
        write_tensors(path, {"sequences": self.sequences, "lengths": self.lengths, **vectors}, {"kind": "encoded"})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Encoded:
        """Read what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not an Encoded; the message names the file and the tensor.
        """
        shapes, metadata = read_header(path)
        vectors = [name for name in shapes if name.startswith(_VECTOR)]
        if metadata.get("kind") != "encoded" or shapes.keys() - set(vectors) != {"sequences", "lengths"}:
            raise ValueError(f"{path}: does not hold encoded images or captions")
        tensors = read_tensors(path, shapes)
        try:
            return Encoded(
                tensors["sequences"], tensors["lengths"], {name[len(_VECTOR) :]: tensors[name] for name in vectors}
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def _map(self, change: Callable[[Tensor], Tensor]) -> Encoded:
        vectors = {name: change(vector) for name, vector in self.vectors.items()}
        return Encoded(change(self.sequences), change(self.lengths), vectors)


# Under autocast torch's LSTM computes in one or another of them, as the lengths of a batch's captions have it.
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return reduce(torch.promote_types, dtypes)


def _joined(vectors: Sequence[Tensor]) -> Tensor:
    if all(vector.dim() == 2 for vector in vectors):
        longest = max(vector.shape[1] for vector in vectors)
        vectors = [_widened(vector, longest) for vector in vectors]
    return torch.cat(list(vectors))


def _widened(rows: Tensor, width: int) -> Tensor:
    """(n, L, …) to (n, width, …), padded with zeros, or with -1 where they are places, integers."""
    behind = (0, 0) * (rows.dim() - 2) + (0, width - rows.shape[1])
    return F.pad(rows, behind, value=0 if rows.is_floating_point() else -1)
