"""Regions: a linear layer, each region on its own."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from crossret.encoders.linear import xavier_linear
from crossret.encoders.normalize import l2_normalize
from crossret_kernels.extending import choose


class RegionEncoder(nn.Module):
    """v_i = W_v f_i + b_v (SCAN Eq. 13), then tanh (OAN Eq. 3) and L2 normalisation where asked for.

    Parameters: ``fc.weight`` (Xavier uniform), ``fc.bias`` (zero).

    Args:
        image_dim: length of a region's feature.
        embed_dim: length D of its embedding.
        normalize: whether every embedded region gets length 1.
        activation: "none", or "tanh" of the linear layer's output.

    Raises:
        ValueError: ``activation`` is neither.
    """

    def __init__(
        self,
        image_dim: int,
        embed_dim: int,
        *,
        normalize: bool = True,
        activation: Literal["none", "tanh"] = "none",
    ) -> None:
        super().__init__()
        choose("activation", activation, ("none", "tanh"))
        self.normalize = normalize
        self.activation = activation
        self.fc = xavier_linear(image_dim, embed_dim)

    def forward(self, features: Tensor) -> Tensor:
        """(…, image_dim) float → (…, embed_dim)."""
        regions: Tensor = self.fc(features)
        if self.activation == "tanh":
            regions = regions.tanh()
        return l2_normalize(regions) if self.normalize else regions
