"""`linear`: a linear layer with the activation behind it, by kernels where they are asked for and serve it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels.backends import NATIVE_MISSING
from crossret_kernels.operations import Operand, define
from crossret_kernels.torch_internals import transformed

# rows (…, in), weight (out, in) and bias (out,), or (0,) where there is none; in float32.
_OPERANDS = tuple(Operand(name, "Tensor", True) for name in ("rows", "weight", "bias"))
_OPTIONS = "bool bfloat16"  # whether products are of factors rounded to it


def _layer_like(rows: Tensor, weight: Tensor, bias: Tensor, bfloat16: bool) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], weight.size(0)))


_LINEAR = define("linear", _OPERANDS, _OPTIONS, _layer_like)
_LINEAR_TANH = define("linear_tanh", _OPERANDS, _OPTIONS, _layer_like, keeps_result=True)


def linear(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, tanh: bool = False, bfloat16: bool = False,
    native: bool = True,
) -> Tensor:  # fmt: skip
    """Rows (…, in) through a weight (out, in) and a bias (out,), and tanh where it is wanted: (…, out).

    By kernels in float32 on the CPU where `native` asks for them, of factors rounded to bfloat16 where that is wanted;
    by PyTorch operations elsewhere, and in calls that are traced or transformed, at the precision of what is given.
    """
    served = native and NATIVE_MISSING is None and not torch.compiler.is_compiling() and not transformed()
    floats = rows.dtype == weight.dtype == torch.float32
    if served and floats and rows.device.type == "cpu" and weight.numel():
        layer = _LINEAR_TANH if tanh else _LINEAR
        made: Tensor = layer(rows, weight, weight.new_empty(0) if bias is None else bias, bfloat16)
        return made
    made = F.linear(rows, weight, bias)
    return torch.tanh(made) if tanh else made
