"""Class of encoders that a model is of, by the configuration files beside its weights."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from crossret.extraction.grids import FAMILIES, GridEncoder
from crossret.extraction.hugging_face import read_config
from crossret.extraction.late_interaction import (
    LateInteractionPictures,
    LateInteractionTexts,
    is_late_interaction,
)
from crossret.extraction.maps import encoder_of_package
from crossret.extraction.naflex import NAFLEX, NaFlexEncoder
from crossret.extraction.protocol import PictureEncoder, TextEncoder
from crossret.extraction.texts import HuggingFaceTexts
from crossret.extraction.timm_backbones import TimmEncoder


def load_picture_encoder(name: str | os.PathLike[str], *, weights: bool = True) -> PictureEncoder[Any]:
    """An encoder of pictures, in float32 on the CPU.

    Args:
        name: a folder that ``save_pretrained`` wrote, or a model of the Hugging Face Hub, which its cache may have; of
            timm such a folder, ``timm/…`` of the Hub, or ``timm:…``, a name that timm knows; or
            ``package.module:function``, a function of an installed package that returns a ``PictureEncoder``, such as
            ``MapEncoder`` around any convolutional network.
        weights: whether to load them; of what ``PictureEncoder.files`` are, there are none.

    Raises:
        ValueError: there is none, a package is missing, or it is of no family that is known; names it.
    """
    known = os.fspath(name)
    if known.startswith("timm:"):
        return TimmEncoder(known, known.removeprefix("timm:"), weights=weights)
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", known):
        return encoder_of_package(known)
    if is_late_interaction(known):
        return LateInteractionPictures(known)
    config = read_config(known)
    kind = str(config.get("model_type"))
    if kind in FAMILIES:
        return GridEncoder(known, FAMILIES[kind], weights=weights)
    if kind in NAFLEX:
        return NaFlexEncoder(known, weights=weights)
    if "architecture" in config and kind in ("None", "timm_wrapper"):  # which transformers calls timm's
        source = f"{'local-dir' if Path(known).is_dir() else 'hf-hub'}:{known}"
        return TimmEncoder(known, source, config.get("model_args"), weights=weights)
    raise ValueError(
        f"{known}: model_type {kind!r} is no encoder of pictures that is known: {', '.join([*FAMILIES, *NAFLEX])}, and "
        "any backbone of timm"
    )


def load_text_encoder(name: str | os.PathLike[str], *, weights: bool = True) -> TextEncoder:
    """An encoder of texts, in float32 on the CPU: a text tower, any text encoder that transformers loads, or one
    of late interaction, which reads captions as queries.

    Args:
        name: as that of ``load_picture_encoder``.
        weights: likewise.

    Raises:
        ValueError: there is none, transformers is missing, or it is no encoder of texts; names it.
    """
    known = os.fspath(name)
    if is_late_interaction(known):
        return LateInteractionTexts(known)
    return HuggingFaceTexts(known, read_config(known), weights=weights)
