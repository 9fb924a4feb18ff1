"""Models whose parameters have shapes, but no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWN = (Tensor.normal_, Tensor.uniform_)


class _Undrawn(TorchFunctionMode):
    """Skips what models fill weights with: for that on "meta" PyTorch imports its compiler, which takes seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in _DRAWN or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else named["tensor"]
        return func(*args, **named)


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Context in which a model is made without memory for its parameters; no random number is drawn."""
    with torch.device("meta"), _Undrawn():
        yield
