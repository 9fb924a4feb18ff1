"""Linear layers as SCAN begins with them: Xavier-uniform weights, zero biases."""

from __future__ import annotations

from torch import nn


def xavier_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer from ``inputs`` to ``outputs`` numbers."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
