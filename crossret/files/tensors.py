"""Safetensors files: written atomically, and checked against what is expected before a tensor is read."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from crossret.files.atomic import atomic_write
from crossret.files.regular import check_regular
from crossret.files.unicode import escaped, is_unicode

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "U8": torch.uint8,
}
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


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and the metadata that belongs to them as one file, which is there as a whole or not at all.

    Raises:
        OSError: the file cannot be written.
        ValueError: its name is not UTF-8, by which nothing could read it again.
    """
    _check_name(path)
    # A view is copied: safetensors refuses tensors that share memory or have gaps.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    # The library writes metadata in the order of a hash that differs from process to process. Without any its bytes are
    # the same every time, and so is a header with these in the order in which they came.
    contents = memoryview(save(copies))
    length = int.from_bytes(contents[:_LENGTH], "little")
    described = json.loads(bytes(contents[_LENGTH : _LENGTH + length]))
    header = json.dumps({"__metadata__": dict(metadata), **described}, ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with atomic_write(path) as file:
        file.write(len(header).to_bytes(_LENGTH, "little"))
        file.write(header)
        file.write(contents[_LENGTH + length :])


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, TensorType], dict[str, str]]:
    """What the file says it holds, by name, and its metadata; no tensor is read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no safetensors file, is cut short, its name is not UTF-8, or a tensor has a dtype that nothing
            here writes.
    """
    _check_name(path)
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
    for name, wanted in expected.items():
        if name not in found:
            raise ValueError(f"{path}: tensor {name!r} is missing")
        if found[name] != wanted:
            raise ValueError(f"{path}: tensor {name!r} is {found[name]}, expected {wanted}")
    for name in found:
        if name not in expected and name not in passed_over:
            raise ValueError(f"{path}: unexpected tensor {name!r}")
    with safe_open(path, framework="pt") as file:
        # A clone owns its memory: the file may be replaced while the tensor lives.
        return {name: file.get_tensor(name).clone() for name in expected}


def _check_name(path: str | os.PathLike[str]) -> None:
    """Raise a ValueError where safetensors, which takes UTF-8 for all names, could not find the file."""
    if not is_unicode(os.fspath(path)):
        raise ValueError(f"{escaped(os.fspath(path))}: its name is not UTF-8, as that of a safetensors file must be")
