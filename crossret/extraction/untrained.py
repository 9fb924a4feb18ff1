"""A small encoder of pictures that has learned nothing: to be trained from scratch, through a model."""

from __future__ import annotations

import os

import torch

from crossret.extraction.hugging_face import check_installed, quiet


def save_untrained_encoder(
    directory: str | os.PathLike[str], *, seed: int, side: int = 112, widths: tuple[int, ...] = (24, 64, 128)
) -> None:
    """Write a folder that ``load_picture_encoder`` reads: a ResNet with random weights and its image processor.

    Convolutions learn from a few thousand pictures what a vision transformer needs many more for. A token is of 4 x 4
    pixels by the first width alone, and of twice the side by each other one: 49 tokens of 112 x 112 by three widths.

    Args:
        directory: the folder, made if needed.
        seed: decides the weights; torch's generator stays as it is.
        side: pixels of a side to which pictures are resized.
        widths: numbers of a place in each stage; a token has the last.

    Raises:
        ValueError: transformers is missing; names the extra.
        OSError: the folder cannot be written.
    """
    check_installed("transformers", "encoders", "an encoder of pictures")
    from transformers import ResNetConfig, ResNetModel, ViTImageProcessorPil

    config = ResNetConfig(
        embedding_size=widths[0], hidden_sizes=list(widths), depths=[1] * len(widths), layer_type="basic"
    )
    with quiet(), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        ResNetModel(config).save_pretrained(directory)
        ViTImageProcessorPil(size={"height": side, "width": side}).save_pretrained(directory)
