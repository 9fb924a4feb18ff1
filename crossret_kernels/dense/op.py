"""`Products`: who makes the linear layers of a call, native kernels or PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.backends import NATIVE_MISSING
from crossret_kernels.inputs.tensors import autocasts
from crossret_kernels.operations import Operand, define
from crossret_kernels.torch_internals import transformed

# rows (…, in), weight (out, in) and bias (out,), or (0,) where there is none; in float32.
_OPERANDS = tuple(Operand(name, "Tensor", True) for name in ("rows", "weight", "bias"))
_OPTIONS = "bool bfloat16"  # whether products are of factors rounded to it


def _layer_like(rows: Tensor, weight: Tensor, bias: Tensor, bfloat16: bool) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], weight.size(0)))


_LINEAR = define("linear", _OPERANDS, _OPTIONS, _layer_like)


class Products(NamedTuple):
    """How products of matrices are made.

    Attributes:
        native: by kernels where these serve; else in PyTorch operations.
        bfloat16: whether kernels round factors to it, as they do under autocast to it anyway; sums are float32.
    """

    native: bool = False
    bfloat16: bool = False

    def serve(self, *tensors: Tensor) -> bool:
        """Whether kernels take these: float32 on the CPU, in a call that is neither traced nor transformed."""
        native = self.native and NATIVE_MISSING is None and not torch.compiler.is_compiling() and not transformed()
        return native and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Rows (…, in) through a weight (out, in) and a bias (out,): (…, out)."""
        if weight.numel() and self.serve(rows, weight):
            halves = self.bfloat16 or (autocasts("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16)
            result: Tensor = _LINEAR(rows, weight, weight.new_empty(0) if bias is None else bias, halves)
            return result
        return F.linear(rows, weight, bias)
