"""Arguments as checked tensors: arrays by their memory, integers, masks, parameters, features in any layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import lt
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, cuda
from torch.compiler import is_compiling

Array: TypeAlias = "Tensor | NDArray[Any]"
# Values, offsets, lengths, mask and items of a list, as `Ragged` has them.
Parts: TypeAlias = "tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor] | None]"

FEATURE_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INT64, DENSE = torch.int64, torch.strided  # looking them up in torch shows in the time of a call
INTEGER_DTYPES = (INT64, torch.int32, torch.int16, torch.int8, torch.uint8)
FEW = 128  # integers, which Python looks at faster than tensor operations do
_SHARED = frozenset(np.dtype(kind) for kind in ("f2", "f4", "f8", "?", "i1", "i2", "i4", "i8", "u1"))
_WIDENED = frozenset(np.dtype(kind) for kind in ("u2", "u4", "u8"))  # integers that few operations of torch know


class SideNames(NamedTuple):
    """Names by which errors call a side's features, their lengths and mask, and one item."""

    features: str
    lengths: str
    mask: str
    item: str


def as_tensor(candidate: Any, name: str) -> Any:
    """The tensor that shares an array's memory; what is no array as it is, for the checks that follow.

    Raises TypeError or ValueError naming the argument for an array whose memory no tensor can share.
    """
    if not isinstance(candidate, np.ndarray):
        return candidate
    if torch.compiler.is_compiling():  # which traces arrays as tensors
        return torch.from_numpy(candidate)
    check_array(candidate, name)
    if candidate.dtype in _WIDENED:
        return torch.from_numpy(candidate.astype(np.int64))
    if candidate.flags.carray:
        return torch.from_numpy(candidate)
    if any(stride < 0 or stride % candidate.itemsize for stride in candidate.strides) or not candidate.flags.aligned:
        raise ValueError(f"{name} has strides {candidate.strides}, which a tensor cannot have: pass a copy")
    return torch.from_numpy(candidate if candidate.flags.writeable else np.asarray(_Writable(candidate)))


def check_array(array: NDArray[Any], name: str) -> None:
    """Raises TypeError for what a tensor cannot hold. What a mask hides would be read as if it were valid."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without a mask, not a MaskedArray: fill or cut what it hides")
    if array.dtype in _SHARED or array.dtype in _WIDENED:
        return
    if array.dtype.newbyteorder("=") in _SHARED | _WIDENED:
        raise TypeError(f"{name} is {array.dtype.str}, not in this machine's byte order: pass {name}.astype of its own")
    raise TypeError(f"{name} must hold numbers that a tensor can, not {array.dtype}")


class _Writable:
    """A read-only array as one that torch takes without a warning: no operation here writes to its inputs."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # whose memory it is
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def autocasts(device_type: str) -> bool:
    """Whether autocast is enabled for this type of device."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def checkable() -> bool:
    """Whether tensor values may be looked at: not while torch.compile traces or a CUDA graph is captured."""
    if is_compiling():
        return False
    return not (cuda.is_initialized() and cuda.is_current_stream_capturing())


def as_int64(integers: Tensor, name: str) -> Tensor:
    """Lengths, offsets or indices as int64, where they are; TypeError or ValueError where they are no such thing."""
    check_integers(integers, name)
    return integers if integers.dtype is INT64 else integers.to(torch.int64)


def check_dense(tensor: Tensor, name: str) -> None:
    """Raises TypeError where a tensor is sparse, nested or in a layout of its own."""
    if tensor.layout is not DENSE or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} must be a dense tensor, not a {kind} one")


def check_integers(integers: Tensor, name: str) -> None:
    """The check alone, which copies nothing."""
    check_dense(integers, name)
    if integers.dtype not in INTEGER_DTYPES:
        raise TypeError(f"{name} must be integers, not {integers.dtype}")
    if integers.is_meta:
        check_has_values(integers, name)


def check_floating(tensor: Tensor, name: str) -> None:
    """Raises TypeError where a tensor is not dense or of a dtype that is not scored; it may lack values."""
    check_dense(tensor, name)
    if tensor.dtype not in FEATURE_DTYPES:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, not {tensor.dtype}")


def check_has_values(tensor: Tensor, name: str) -> None:
    """Raises ValueError on the meta device; what traces a call, or fakes its tensors, gives them their own device."""
    if tensor.is_meta and checkable():
        raise ValueError(f"{name} is on the meta device, which holds no values")


def as_integers(integers: Array | Sequence[int], name: str) -> Tensor:
    """Integers of a tensor, an array or a list as int64, as `as_int64` checks them."""
    if isinstance(integers, np.ndarray):
        integers = as_tensor(integers, name)
    if isinstance(integers, Tensor):
        return as_int64(integers, name)
    if not isinstance(integers, Sequence):
        raise TypeError(f"{name} must be an integer tensor or a list of integers, not {type(integers).__name__}")
    for index, integer in enumerate(integers):
        if isinstance(integer, bool) or not isinstance(integer, (int, np.integer)):
            raise TypeError(f"{name}[{index}] must be an integer, not {type(integer).__name__}")
        if not -(2**63) <= integer < 2**63:
            raise ValueError(f"{name}[{index}] is {integer}: it does not fit 64 bits")
    return torch.tensor([int(integer) for integer in integers], dtype=torch.int64)


def bounds(integers: Tensor) -> tuple[int, int]:
    """Smallest and largest of at least one integer."""
    if integers.numel() <= FEW:
        values = integers.tolist() if integers.dim() == 1 else integers.flatten().tolist()
        return min(values), max(values)
    lowest, highest = integers.aminmax()
    return int(lowest), int(highest)


def together_on_host(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Integers and masks on the CPU: those of a device in one copy, which is waited for."""
    on_device = [x for x in tensors if x is not None and not x.is_cpu]
    if not on_device:
        return [*tensors]
    numbers = torch.cat([x.to(on_device[0].device).flatten().to(torch.int64) for x in on_device]).cpu()
    parts = iter(numbers.split([x.numel() for x in on_device]))
    return [x if x is None or x.is_cpu else next(parts).view(x.shape).to(x.dtype) for x in tensors]


def checked_parts(
    features: Any, lengths: Any, mask: Any, names: SideNames, empty: bool, looking: bool, on_host: Tensor | None = None
) -> Parts:
    """Parts of features in any layout; `as_ragged` says what they may be and what it raises.

    Args:
        looking: the answer of `checkable`, asked once a call.
        on_host: a copy on the CPU of lengths, mask or offsets that lie on a device, which takes their place.
    """
    name, lengths_name, mask_name, item = names
    if not isinstance(features, Tensor):
        if not isinstance(features, np.ndarray):
            check_alone(lengths, mask, names, "packed and list inputs know their lengths")
            if is_packed(features):
                return packed_parts(*features, (f"{name}[0]", f"{name}[1] (cu_seqlens)"), item, empty, looking, on_host)
            if isinstance(features, Sequence):
                return _list_parts(features, name, item, empty)
            raise TypeError(
                f"{name} must be a (n, L, D) tensor, a (values, cu_seqlens) pair or a list of (L, D) tensors, "
                f"not {type(features).__name__}"
            )
        features = cast("Tensor", as_tensor(features, name))
    sizes = _check_features(features, name, 3, "(n, L, D)")
    if looking and not sizes[1] and sizes[0] and not empty:
        raise ValueError(f"{name} has no rows (shape {tuple(features.shape)}): {item} 0 is empty")
    if mask is not None:
        if lengths is not None:
            raise ValueError(f"{lengths_name} and {mask_name} exclude each other: pass one of them")
        return features, None, None, _as_mask(mask, mask_name, features, name, item, empty, on_host), None
    if lengths is None:
        return features, None, None, None, None
    n, longest, _ = sizes
    counts = as_integers(lengths, lengths_name)
    if counts.dim() != 1 or counts.size(0) != n:
        raise ValueError(
            f"{lengths_name} must hold one length for each of {n} {plural(item)}, got {tuple(counts.shape)}"
        )
    if on_host is not None:
        counts = on_host.to(INT64)
    if looking:
        _check_lengths(counts, longest, lengths_name, item, empty)
    return features, None, counts if counts.is_cpu else counts.to(features.device), None, None


def check_alone(lengths: Any, mask: Any, names: SideNames, reason: str) -> None:
    """Raises ValueError where lengths or a mask stand beside features that have their own."""
    if lengths is not None or mask is not None:
        name = names.lengths if lengths is not None else names.mask
        raise ValueError(f"{name} goes with padded {names.features} only: {reason}")


def lengths_on_device(features: Any, lengths: Any, mask: Any, offsets: Any = None) -> Tensor | None:
    """The lengths, mask or offsets of a side, where they are a tensor on a device; else None."""
    tensor = lengths if mask is None else mask
    if offsets is not None:
        tensor = offsets
    elif isinstance(features, tuple) and len(features) == 2:
        tensor = features[1]
    if not isinstance(tensor, Tensor) or tensor.is_cpu or tensor.is_meta:
        return None
    dense = tensor.layout is DENSE and not tensor.is_nested
    return tensor if dense and (tensor.dtype in INTEGER_DTYPES or tensor.dtype is torch.bool) else None


def plural(item: str) -> str:
    """The plural of an item's name: images, queries."""
    return f"{item[:-1]}ies" if item.endswith("y") else f"{item}s"


def _as_mask(
    mask: Any, mask_name: str, features: Tensor, name: str, item: str, empty: bool, on_host: Tensor | None = None
) -> Tensor:
    """The mask (n, L) of padded features, contiguous, checked; features on the meta device may stand for others.

    `on_host` is a copy of it on the CPU, to look at and to return, where it lies on a device.
    """
    mask = as_tensor(mask, mask_name)
    if not isinstance(mask, Tensor):
        raise TypeError(f"{mask_name} must be a bool tensor, not {type(mask).__name__}")
    check_dense(mask, mask_name)
    if mask.dtype != torch.bool:
        raise TypeError(f"{mask_name} must be bool, True where {name} hold a row, not {mask.dtype}")
    if mask.shape != features.shape[:2]:
        raise ValueError(f"{mask_name} must have shape (n, L) = {tuple(features.shape[:2])}, got {tuple(mask.shape)}")
    check_has_values(mask, mask_name)
    if mask.device != features.device and not features.is_meta:
        raise ValueError(f"{mask_name} is on {mask.device} but {name} are on {features.device}")
    mask = mask if on_host is None else on_host
    if not empty and checkable():
        has_row = mask.any(1)
        if not has_row.all():
            index = int((~has_row).nonzero()[0])
            raise ValueError(f"{mask_name}[{index}] has no True: every {item} needs at least one row")
    return mask.contiguous()


def packed_parts(
    values: Any, offsets: Any, names: tuple[str, str], item: str, empty: bool, looking: bool, on_host: Tensor | None
) -> Parts:
    """Parts of packed rows (rows, D) and offsets (n + 1,), whose names errors use; all else as in `checked_parts`."""
    if not isinstance(values, Tensor):
        values = as_tensor(values, names[0])
    if not isinstance(values, Tensor):
        raise TypeError(f"{names[0]} must be the tensor of packed rows, not {type(values).__name__}")
    rows = _check_features(values, names[0], 2, "(rows, D)")[0]
    offsets = as_integers(offsets, names[1])
    if offsets.dim() != 1:
        raise ValueError(f"{names[1]} must have one dimension, got shape {tuple(offsets.shape)}")
    if on_host is not None:
        offsets = on_host.to(INT64)
    if looking:
        _check_offsets(offsets, rows, names, item, empty)
    return values, offsets if offsets.is_cpu else offsets.to(values.device), None, None, None


def _list_parts(features: Sequence[Any], name: str, item: str, empty: bool) -> Parts:
    if not features:
        raise ValueError(f"{name} is an empty list: D is unknown; pass a (0, L, D) tensor for an empty batch")
    items: list[Tensor] = [
        feature if isinstance(feature, Tensor) else as_tensor(feature, f"{name}[{index}]")
        for index, feature in enumerate(features)
    ]
    first = items[0]
    _check_item(first, first, f"{name}[0]", name)
    rows = _rows_of_alike(items, first)
    if rows is None or (not empty and 0 in rows):
        for index, feature in enumerate(items):
            _check_item(feature, first, f"{name}[{index}]", name)
            if not empty and not feature.size(0):
                raise ValueError(f"{name}[{index}] is empty: every {item} needs at least one row")
        rows = [feature.size(0) for feature in items]
    if len(items) == 1:
        return first.unsqueeze(0), None, None, None, None
    offsets = torch.tensor(list(accumulate(rows, initial=0)), dtype=torch.int64)
    return first[:0], offsets, None, None, items


def _rows_of_alike(items: Sequence[Any], first: Tensor) -> list[int] | None:
    """Rows of every item, where all are features like the first: checks one by one cost as much as scores."""
    dtype, device, dim = first.dtype, first.device, first.shape[1]
    if not all([isinstance(feature, Tensor) and not feature.is_nested for feature in items]):
        return None
    if not all([feature.dtype is dtype and feature.layout is DENSE for feature in items]):
        return None
    if not all([feature.device == device for feature in items]):
        return None
    shapes = [feature.shape for feature in items]
    alike = all([len(shape) == 2 and shape[1] == dim for shape in shapes])
    return [shape[0] for shape in shapes] if alike else None


def _check_item(feature: Any, first: Tensor, item_name: str, name: str) -> None:
    """Raises where an item of a list is no features, or none that go with those of the first."""
    if not isinstance(feature, Tensor):
        raise TypeError(f"{item_name} must be a (L, D) tensor, not {type(feature).__name__}")
    _check_features(feature, item_name, 2, "(L, D)")
    if feature.size(1) != first.size(1):
        raise ValueError(f"{item_name} has D = {feature.size(1)} but {name}[0] has D = {first.size(1)}")
    if feature.dtype != first.dtype:
        raise TypeError(f"{item_name} is {feature.dtype} but {name}[0] is {first.dtype}")
    if feature.device != first.device:
        raise ValueError(f"{item_name} is on {feature.device} but {name}[0] is on {first.device}")


def is_packed(features: Any) -> TypeGuard[tuple[Any, Any]]:
    """Whether these are packed rows with their cu_seqlens, and not a list of two items."""
    if not isinstance(features, tuple) or len(features) != 2:
        return False
    second = features[1]
    if isinstance(second, Tensor):
        return second.dim() == 1 or not second.is_floating_point()
    return isinstance(second, np.ndarray) and (second.ndim == 1 or second.dtype.kind != "f")


def _check_features(features: Tensor, name: str, dims: int, shape: str) -> torch.Size:
    """Their shape, where they are features."""
    check_floating(features, name)
    sizes = features.shape
    if len(sizes) != dims:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(sizes)}")
    if not sizes[-1]:
        raise ValueError(f"{name} has D = 0 (shape {tuple(sizes)})")
    return sizes


def _check_lengths(sizes: Tensor, longest: int, name: str, item: str, empty: bool) -> None:
    if sizes.size(0) == 0:
        return
    lowest, highest = bounds(sizes)
    least = 0 if empty else 1
    if lowest < least or highest > longest:
        index = int(((sizes < least) | (sizes > longest)).nonzero()[0])
        size = int(sizes[index])
        reason = f"every {item} needs at least one row" if size == 0 else f"it must lie in {least}..{longest}"
        raise ValueError(f"{name}[{index}] is {size}: {reason}")


def _check_offsets(offsets: Tensor, rows: int, names: tuple[str, str], item: str, empty: bool) -> None:
    few = offsets.numel() <= FEW
    ends = offsets.tolist() if few else offsets[:: offsets.size(0) - 1].tolist()
    if not ends or ends[0] != 0:
        raise ValueError(f"{names[1]} must begin with 0")
    if ends[-1] != rows:
        raise ValueError(f"{names[1]} ends at {ends[-1]} but {names[0]} has {rows} rows")
    if not few or not all(map(lt, ends, ends[1:])):
        _check_lengths(offsets.diff(), rows, f"diff of {names[1]}", item, empty)


def check_operand(
    name: str, operand: object, features: Tensor, features_name: str, form: str, sizes: Sequence[int]
) -> Tensor:
    """The operand as a tensor, of shape `sizes`, which `form` spells out, on the device of the features.

    Its dtype is any floating one but float64, which goes with float64 alone. Raises TypeError or ValueError that names
    it.
    """
    operand = as_tensor(operand, name)
    if not isinstance(operand, Tensor):
        raise TypeError(f"{name} must be a {form} tensor, not {type(operand).__name__}")
    check_floating(operand, name)
    if operand.shape != tuple(sizes):
        raise ValueError(f"{name} must have shape {form} = {tuple(sizes)}, got {tuple(operand.shape)}")
    if operand.device != features.device:
        raise ValueError(f"{name} is on {operand.device} but {features_name} are on {features.device}")
    if (operand.dtype == torch.float64) != (features.dtype == torch.float64):
        raise TypeError(f"{name} is {operand.dtype} but {features_name} are {features.dtype}: float64 takes float64")
    return operand
