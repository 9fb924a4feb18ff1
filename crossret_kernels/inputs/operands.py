"""Checks on tensors that come beside features: logits, context vectors, parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crossret_kernels.inputs.tensors import as_tensor, check_floating


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
