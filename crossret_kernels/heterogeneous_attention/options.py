"""The layers and the options of heterogeneous attention: names, defaults and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import TypedDict

from crossret_kernels.cross_attention.options import ScanOptions
from crossret_kernels.inputs.options import DIRECTIONS, check_flag, choose, keep_numbers
from crossret_kernels.inputs.tensors import check_operand

MATCHINGS = ("local", "global")
LAYER_NORM_EPS = 1e-5
WEIGHTS = ("query_weight", "key_weight", "value_weight", "output_weight")


class HeterogeneousLayer(NamedTuple):
    """Parameters of one layer (HAN §3.2): weights (D, D) as `torch.nn.Linear` has them, all others (D,).

    q, k, v and fc of the paper are query, key, value and output; norm is its layer normalisation. The key's bias adds
    the same to all logits of a query, which the softmax takes out again: it changes no score.
    """

    query_weight: Tensor
    query_bias: Tensor
    key_weight: Tensor
    key_bias: Tensor
    value_weight: Tensor
    value_bias: Tensor
    output_weight: Tensor
    output_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor

    def to(self, dtype: torch.dtype) -> HeterogeneousLayer:
        return HeterogeneousLayer(*(parameter.to(dtype) for parameter in self))


class HeterogeneousFields(TypedDict, total=False):
    """The fields of `HeterogeneousOptions`, which documents them, as keywords of functions."""

    heads: int
    lambda_attention: float
    matching: str
    direction: str
    lambda_softmax: float
    pooling: str
    lambda_lse: float
    normalize: bool


@dataclass(frozen=True, kw_only=True)
class HeterogeneousOptions:
    """How `heterogeneous_scores` and `heterogeneous_attention_weights` score a pair.

    These functions take one as `options`, and its fields as keywords, which come before those of `options`.

    Attributes:
        heads: of each layer; they split D.
        lambda_attention: β of the layers' softmax, which multiplies q·k as it is: there is no 1/√D beside it.
        matching: "local": each row of the attending side is matched with what it attends to, as `scan_scores` does it
            with raw_feature_norm="no_norm" and normalize=True (§3.3). "global": the score is the cosine of the pair's
            first region with its first word, where the caller has put SEP and CLS (§4.3); direction, lambda_softmax,
            pooling and lambda_lse are not used then.
        direction: of the local matching: "t2i": words attend to regions (HAN's); "i2t": regions attend to words.
        lambda_softmax: β of the local matching's softmax over cosines.
        pooling: of the relevances over the attending side: "avg" (Eq. 1), "lse", "sum", "max" or "softmax".
        lambda_lse: λ of "lse", above 0.
        normalize: whether to divide every region and word by its L2 norm ahead of the layers; zero vectors stay zero.

    Raises:
        ValueError: a field is out of range. TypeError: one is no number or no flag. Both name it.
    """

    heads: int = 4
    lambda_attention: float = 1.0
    matching: str = "local"
    direction: str = "t2i"
    lambda_softmax: float = 9.0
    pooling: str = "avg"
    lambda_lse: float = 6.0
    normalize: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.heads, int) or isinstance(self.heads, bool):
            raise TypeError(f"heads must be an integer, not {type(self.heads).__name__}")
        if self.heads < 1:
            raise ValueError(f"heads must be at least 1, not {self.heads}")
        keep_numbers(self, "lambda_attention")
        choose("matching", self.matching, MATCHINGS)
        choose("direction", self.direction, DIRECTIONS)
        check_flag("normalize", self.normalize)
        _ = self.local  # checks what it is made of

    @property
    def local(self) -> ScanOptions:
        """The local matching step (HAN §3.3): SCAN's, of cosines without a norm."""
        return ScanOptions(
            direction=self.direction, normalize=True, raw_feature_norm="no_norm", lambda_softmax=self.lambda_softmax,
            pooling=self.pooling, lambda_lse=self.lambda_lse,
        )  # fmt: skip


def check_layers(layers: object, features: Tensor, heads: int) -> tuple[HeterogeneousLayer, ...]:
    """The layers for features (…, D); raises TypeError or ValueError naming the layer and the parameter."""
    if isinstance(layers, HeterogeneousLayer) or not isinstance(layers, Sequence):
        raise TypeError(f"layers must be a sequence of HeterogeneousLayer, not {type(layers).__name__}")
    dim = features.size(-1)
    if layers and dim % heads:
        raise ValueError(f"heads must divide D = {dim}, and {heads} does not")
    for index, layer in enumerate(layers):
        if not isinstance(layer, HeterogeneousLayer):
            raise TypeError(f"layers[{index}] must be a HeterogeneousLayer, not {type(layer).__name__}")
        for name, parameter in zip(layer._fields, layer, strict=True):
            axes = 2 if name in WEIGHTS else 1
            form = "(D, D)" if axes == 2 else "(D,)"
            check_operand(f"layers[{index}].{name}", parameter, features, "the features", form, (dim,) * axes)
    return tuple(layers)
