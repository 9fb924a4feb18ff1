"""Safetensors files: written atomically, and checked against what is expected before a tensor is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from crossret.files.atomic import atomic_write
from crossret.files.regular import check_regular

# Order in which the format's own library lays tensors out: the widest first, each at a multiple of its width.
_DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The format: the header's length, the header, which is JSON, and the tensors' bytes.
_LENGTH, _ALIGNMENT = 8, 8


@dataclass(frozen=True)
class TensorType:
    """The shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorType:
        return cls(tuple(tensor.shape), tensor.dtype)

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A fingerprint of tensors: their names, shapes, dtypes and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {TensorType.of(tensor)}\n".encode())
        if tensor.numel():
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and the metadata that belongs to them as one file, which is there as a whole or not at all.

    Tensors are written one after the other from where they are: no second copy of them all is made. The same ones give
    the same bytes, with the metadata in the order in which it comes.

    Raises:
        OSError: the file cannot be written.
        TypeError: a tensor has a dtype that ``read_tensors`` would not take, or is none.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _NAMES:
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{path}: {name!r} must be a tensor of {', '.join(_DTYPES)}, not {kind}")
    order = list(_NAMES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    ends = list(accumulate((tensors[name].nbytes for name in names), initial=0))
    described = {
        name: {
            "dtype": _NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
        for name, begin, end in zip(names, ends[:-1], ends[1:], strict=True)
    }
    header = json.dumps({"__metadata__": dict(metadata), **described}, ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with atomic_write(path) as file:
        file.write(len(header).to_bytes(_LENGTH, "little"))
        file.write(header)
        for name in names:
            contents = tensors[name].detach().cpu().contiguous()
            file.write(contents.reshape(-1).view(torch.uint8).numpy().data)


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, TensorType], dict[str, str]]:
    """Types of a file's tensors, by name, and its metadata; no tensor is read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no safetensors file, is cut short, or a tensor has a dtype that nothing here writes.
    """
    check_regular(path)
    types = {}
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            for name in names:
                part = file.get_slice(name)
                dtype = part.get_dtype()
                if dtype not in _DTYPES:
                    raise ValueError(f"{path}: tensor {name!r} has dtype {dtype}, expected one of {', '.join(_DTYPES)}")
                types[name] = TensorType(tuple(part.get_shape()), _DTYPES[dtype])
            return types, dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error})") from error


def read_tensors(
    path: str | os.PathLike[str], expected: Mapping[str, TensorType], *, passed_over: Collection[str] = ()
) -> dict[str, Tensor]:
    """Exactly the expected tensors, in main memory; names, shapes and dtypes are compared before any is read.

    Others are an error, except those of the names ``passed_over``, which are not read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is unreadable, or a tensor is missing, superfluous or of another shape or dtype; the
            message names the file and the tensor.
    """
    found, _ = read_header(path)
    check_types(path, {name: kind for name, kind in found.items() if name not in passed_over}, expected)
    with safe_open(path, framework="pt") as file:
        # A clone owns its memory: the file may be replaced while the tensor lives.
        return {name: file.get_tensor(name).clone() for name in expected}


def check_types(
    path: str | os.PathLike[str], found: Mapping[str, TensorType], expected: Mapping[str, TensorType]
) -> None:
    """Raise a ValueError that names the file and the first tensor where what was found is not what was expected."""
    for name, wanted in expected.items():
        if name not in found:
            raise ValueError(f"{path}: tensor {name!r} is missing")
        if found[name] != wanted:
            raise ValueError(f"{path}: tensor {name!r} is {found[name]}, expected {wanted}")
    for name in found:
        if name not in expected:
            raise ValueError(f"{path}: unexpected tensor {name!r}")
