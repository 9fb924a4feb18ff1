"""SCAN's published checkpoints, {epoch, model: [image, text], best_rsum, opt, Eiters}, as its model here."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from crossret.compat.checkpoints.contents import GRU, Contents, Number, assembled, embedding, sources_of
from crossret.data.vocabulary import Vocabulary
from crossret.models import Scan

_POOLINGS = {"LogSumExp": "lse", "Max": "max", "Sum": "sum", "Mean": "avg"}
_RNN = tuple(f"rnn.{part}0" for part in GRU)
_REVERSE = "_reverse"
_IMAGE = ("fc.weight", "fc.weight_v", "fc.weight_g", "fc.bias")


def import_scan(opt: Contents, image: Contents, text: Contents, vocabulary: Vocabulary) -> Scan:
    """The model; see ``crossret.compat.checkpoints.import_checkpoint``."""
    for name in text.values:
        if name.removesuffix(_REVERSE) not in ("embed.weight", *_RNN):
            raise ValueError(f"{opt.path}: unexpected tensor {text.within}{name}: SCAN's GRU has one layer")
    for name in image.values:
        if name not in _IMAGE:
            raise ValueError(f"{opt.path}: unexpected tensor {image.within}{name}: SCAN's code has no such")
    both_ways = _RNN[0] + _REVERSE in text.values
    tensors = {
        "image.fc.weight": _weight(image),
        "image.fc.bias": image.tensor("fc.bias", 1),
        "text.embed.weight": embedding(text, vocabulary),
    }
    for name in (f"{part}{way}" for way in ("", _REVERSE)[: 1 + both_ways] for part in _RNN):
        tensors[f"text.{name}"] = text.tensor(name, 1 if ".bias" in name else 2)
    embed_dim, image_dim = tensors["image.fc.weight"].shape
    sizes = {
        "vocabulary_size": len(vocabulary), "word_dim": tensors["text.embed.weight"].shape[1], "embed_dim": embed_dim,
        "image_dim": image_dim, "bidirectional": both_ways,
    }  # fmt: skip
    fields = {**sizes, **_options(opt)}
    return assembled(Scan, fields, tensors, sources_of(tensors, image, text), opt.path, "opt: ")


def _weight(image: Contents) -> Tensor:
    """fc.weight, or what ``weight_norm`` with one norm for all makes of its parts: g·V/‖V‖."""
    if "fc.weight_v" not in image.values:
        return image.tensor("fc.weight", 2)
    direction, length = image.tensor("fc.weight_v", 2), image.values.get("fc.weight_g")
    length = image.tensor("fc.weight_g", length.dim() if isinstance(length, Tensor) else 0)
    if length.numel() != 1:
        raise ValueError(f"{image.path}: tensor {image.within}fc.weight_g has {length.numel()} numbers, expected one")
    wide = direction.double()  # in float64 no square overflows or vanishes
    weight = (wide * (length.reshape(()) / wide.norm())).float()
    if not weight.isfinite().all():
        raise ValueError(f"{image.path}: tensor {image.within}fc.weight_v and fc.weight_g make no finite weights")
    return weight


def _options(opt: Contents) -> dict[str, Any]:
    """Fields of ``ScanConfig`` from the options of train.py."""
    aggregation = opt.option("agg_func", str)
    if aggregation not in _POOLINGS:
        raise ValueError(f"{opt.path}: opt.agg_func must be one of {', '.join(_POOLINGS)}, not {aggregation!r}")
    return {
        "cross_attention": opt.option("cross_attn", str),
        "raw_feature_norm": opt.option("raw_feature_norm", str),
        "pooling": _POOLINGS[aggregation],
        "lambda_softmax": opt.option("lambda_softmax", Number),
        "lambda_lse": opt.option("lambda_lse", Number),
        "margin": opt.option("margin", Number),
        "negatives": "hardest" if opt.option("max_violation", bool) else "sum",
        "image_norm": not opt.option("no_imgnorm", bool),
        "text_norm": not opt.option("no_txtnorm", bool, False),
    }
