"""PyPI's torchvision, which is CUDA's, made importable beside the CPU build of torch; colpali-engine imports it."""

from __future__ import annotations

import importlib

import torch

_KEPT: list[torch.library.Library] = []  # operations are defined as long as their library lasts


def let_torchvision_import() -> None:
    """Define two operations that its Python asks for and nobody calls here, as its library does not load."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
