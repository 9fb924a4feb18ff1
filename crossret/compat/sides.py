"""Queries and documents as other packages pass them, and what those packages all want of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crossret_kernels.extending import as_tensor, check_dense, check_floating, check_has_values, checkable

Embeddings: TypeAlias = "Tensor | NDArray[Any] | Sequence[Any]"
Mask: TypeAlias = "Tensor | NDArray[Any] | Sequence[Any] | None"


@dataclass(frozen=True)
class Side:
    """Embeddings that `crossret_kernels.late_interaction` takes: padded with a bool mask, or listed."""

    features: Tensor | list[Tensor]  # (…, L, D), or (L_i, D) each
    mask: Tensor | None = None  # (…, L) of padded ones; None: all rows are tokens

    def __len__(self) -> int:
        return len(self.features)

    @property
    def device(self) -> torch.device:
        return self.features[0].device if isinstance(self.features, list) else self.features.device

    def tokens(self) -> Tensor:
        """How many every item has, int64."""
        if isinstance(self.features, list):
            return torch.tensor([len(item) for item in self.features], device=self.device)
        if self.mask is not None:
            return self.mask.sum(-1)
        shape = self.features.shape[:-2]
        return torch.full(shape, self.features.size(-2), dtype=torch.int64, device=self.device)

    def part(self, start: int, stop: int, device: torch.device) -> Side:
        """Some items, on a device."""
        if isinstance(self.features, list):
            return Side([item.to(device) for item in self.features[start:stop]])
        mask = None if self.mask is None else self.mask[start:stop].to(device)
        return Side(self.features[start:stop].to(device), mask)

    def stacked(self) -> Side:
        """(n, N, L, D) as (n · N, L, D); what has no such groups as it is."""
        if isinstance(self.features, list) or self.features.dim() != 4:
            return self
        return Side(self.features.flatten(0, 1), None if self.mask is None else self.mask.flatten(0, 1))


def as_side(
    embeddings: Embeddings, mask: Mask, names: tuple[str, str], *, zeros_of_padded: bool, zeros_of_listed: bool = False
) -> Side:
    """Embeddings and their mask, checked as far as `late_interaction` does not.

    Args:
        embeddings: a tensor or array (…, L, D), or a list of (L_i, D); integers become float32.
        mask: bool, or 0 and 1 of any dtype, that broadcasts to (…, L), L the longest item's of a list; or a list of
            masks (L_i,). None: all rows are tokens, except where zeros tell otherwise.
        names: of both, for errors.
        zeros_of_padded, zeros_of_listed: whether, without a mask, rows of norm 0 are padding.

    While torch.compile traces, nothing depends on values: what would be left out of lists is masked.

    Raises:
        ValueError: a mask of another shape or with other numbers; what is on the meta device.
        TypeError: what holds no real numbers, is not dense, or is no tensor, array or list of such.
    """
    name, mask_name = names
    if isinstance(embeddings, (Tensor, np.ndarray)):
        features = as_embeddings(embeddings, name)
        if features.dim() < 2:
            raise ValueError(f"{name} must be (n, L, D), got shape {tuple(features.shape)}")
        if mask is not None:
            return Side(features, as_mask(mask, mask_name, features.shape[:-1], features.device))
        return _without_zeros(features) if zeros_of_padded else Side(features)
    if not isinstance(embeddings, Sequence) or isinstance(embeddings, str):
        raise TypeError(f"{name} must be a tensor, an array or a list, not {type(embeddings).__name__}")
    items = [as_embeddings(item, f"{name}[{index}]") for index, item in enumerate(embeddings)]
    for index, item in enumerate(items):
        if item.dim() != 2:
            raise ValueError(f"{name}[{index}] must be (L, D), got shape {tuple(item.shape)}")
    if not items or (mask is None and not zeros_of_listed):
        return Side(items)
    if mask is None:
        return (
            Side(_rows_without_zeros(items)) if checkable() else _without_zeros(pad_sequence(items, batch_first=True))
        )
    lengths = [len(item) for item in items]
    chosen = as_mask(mask, mask_name, (len(items), max(lengths)), items[0].device)
    if checkable():
        return Side([item[own[: len(item)]] for item, own in zip(items, chosen, strict=True)])
    rows = torch.arange(max(lengths), device=chosen.device) < torch.tensor(lengths, device=chosen.device)[:, None]
    return Side(pad_sequence(items, batch_first=True), chosen & rows)


def as_mask(mask: Mask, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
    """A mask of bool, or of 0 and 1, as a bool tensor of this shape.

    Raises ValueError naming the mask, and the place of a number that is neither, which torch.compile cannot look for;
    TypeError for what is no mask.
    """
    if isinstance(mask, (list, tuple)):
        if len(mask) != shape[0]:  # a single one would do for all
            raise ValueError(f"{name} holds {len(mask)} masks, but there are {shape[0]} items")
        masks = [_numbers(own, f"{name}[{index}]") for index, own in enumerate(mask)]
        for index, own in enumerate(masks):
            if not own.dim():
                raise ValueError(f"{name}[{index}] must be a mask (L,), not a number")
        mask = pad_sequence(masks, batch_first=True) if masks else torch.ones(shape)
    if not isinstance(mask, (Tensor, np.ndarray)):
        raise TypeError(f"{name} must be a tensor, an array or a list of masks, not {type(mask).__name__}")
    tensor = _numbers(mask, name).to(device)
    if tensor.dtype != torch.bool:
        kept = tensor != 0
        other = kept & (tensor != 1)
        if checkable() and other.any():
            place = other.nonzero()[0].tolist()
            number = tensor[tuple(place)].item()
            raise ValueError(f"{name}{place} is {number}: a mask holds True and False or 1 and 0, no weights")
        tensor = kept
    try:
        return tensor.expand(*shape)
    except RuntimeError:
        error = f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}"
        if 0 < tensor.dim() <= len(shape) and tensor.shape[-1] != shape[-1]:
            error += f": it covers {tensor.shape[-1]} tokens, but the padded embeddings have {shape[-1]}"
        raise ValueError(error) from None


def together(stacked: Embeddings, name: str) -> Tensor:
    """Tensors, arrays or lists of one shape as one tensor.

    Raises ValueError naming the first that has another shape, or where there is none.
    """
    if isinstance(stacked, (Tensor, np.ndarray)):
        return _numbers(stacked, name)
    if not isinstance(stacked, Sequence) or isinstance(stacked, str):
        raise TypeError(f"{name} must be a tensor, an array or a list, not {type(stacked).__name__}")
    items = [_numbers(own, f"{name}[{index}]") for index, own in enumerate(stacked)]
    if not items:
        raise ValueError(f"{name} is an empty list: pass a tensor of no items")
    for index, item in enumerate(items):
        if item.shape != items[0].shape:
            first = tuple(items[0].shape)
            raise ValueError(f"{name}[{index}] has shape {tuple(item.shape)}, but {name}[0] has {first}")
    return torch.stack(items)


def check_dimensions(side: Side, name: str, shape: str) -> None:
    """Raises ValueError where padded embeddings have not as many dimensions as a shape, such as "(n, L, D)", names."""
    if isinstance(side.features, Tensor) and side.features.dim() != shape.count(",") + 1:
        raise ValueError(f"{name} must be {shape}, got shape {tuple(side.features.shape)}")


def score(of: Callable[..., Tensor], queries: Side, documents: Side) -> Tensor:
    """Scores by `maxsim` or `maxsim_pairs`, as ``of``; pairs with an empty item score 0."""
    masks = {"query_mask": queries.mask, "document_mask": documents.mask}
    return of(queries.features, documents.features, **masks, empty_score=0.0)


def parts(items: int, most: int) -> list[tuple[int, int]]:
    """Bounds of runs of at most so many items; of no items one run."""
    return [(start, min(start + most, items)) for start in range(0, max(1, items), max(1, most))]


def as_embeddings(embeddings: Any, name: str) -> Tensor:
    """A tensor of a dtype that is scored; integers become float32.

    Raises TypeError or ValueError naming the argument, as `as_side`.
    """
    tensor = _numbers(embeddings, name)
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    check_floating(tensor, name)
    return tensor


def _numbers(candidate: Any, name: str) -> Tensor:
    """A tensor, an array or numbers in lists as a dense tensor of real numbers that has values."""
    try:
        tensor = torch.as_tensor(as_tensor(candidate, name))
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(candidate, np.ndarray):  # which names the argument
            raise
        raise TypeError(f"{name} must hold numbers in the shape of a tensor: {error}") from None
    check_dense(tensor, name)
    if tensor.is_complex() or tensor.is_quantized:
        raise TypeError(f"{name} must hold real numbers, not {tensor.dtype}")
    check_has_values(tensor, name)
    return tensor


def _norms(features: Tensor) -> Tensor:
    """0 of rows of zeros, and of numbers whose squares are: an eighth of the time of `any`, and no copy."""
    return torch.linalg.vector_norm(features.detach(), dim=-1)


def _without_zeros(features: Tensor) -> Side:
    tokens = _norms(features) != 0
    return Side(features, None if checkable() and tokens.all() else tokens)


def _rows_without_zeros(items: list[Tensor]) -> list[Tensor]:
    """Looked at together: a wait for every item of a list would take longer than its scores."""
    tokens = torch.cat([_norms(item) for item in items]) != 0
    if tokens.all():
        return items
    own = tokens.split([len(item) for item in items])
    return [item[mask] for item, mask in zip(items, own, strict=True)]
