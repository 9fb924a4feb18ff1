"""VSE++'s published checkpoints, {epoch, model: [image, text], best_rsum, opt, Eiters}, as its model here."""

from __future__ import annotations

import re
import warnings

from crossret.compat.checkpoints.contents import GRU, Contents, Number, assembled, embedding, sources_of
from crossret.data.vocabulary import Vocabulary
from crossret.models import Vse

_IMAGE = ("fc.weight", "fc.bias")
_CNN = "cnn."
_LAYER = re.compile(rf"rnn\.{GRU[0]}\d+")


def import_vse(opt: Contents, image: Contents, text: Contents, vocabulary: Vocabulary) -> Vse:
    """The model; see ``crossret.compat.checkpoints.import_checkpoint``."""
    if "measure" not in opt.values:
        raise ValueError(f"{opt.path}: opt has neither cross_attn, as SCAN's, nor measure, as VSE++'s")
    layers = max(1, sum(_LAYER.fullmatch(name) is not None for name in text.values))
    rnn = [f"rnn.{part}{layer}" for layer in range(layers) for part in GRU]
    cnn = [name for name in image.values if name.startswith(_CNN)]
    for side, known in ((image, {*_IMAGE, *cnn}), (text, {"embed.weight", *rnn})):
        for name in side.values:
            if name not in known:
                raise ValueError(f"{side.path}: unexpected tensor {side.within}{name}: VSE++'s code has no such")
    tensors = {"text.embed.weight": embedding(text, vocabulary)}
    for ours, side, names in (("image", image, _IMAGE), ("text", text, rnn)):
        tensors |= {f"{ours}.{name}": side.tensor(name, 1 if "bias" in name else 2) for name in names}
    embed_dim, image_dim = tensors["image.fc.weight"].shape
    fields = {
        "image_dim": image_dim,
        "vocabulary_size": len(vocabulary),
        "embed_dim": embed_dim,
        "word_dim": tensors["text.embed.weight"].shape[1],
        "text_layers": layers,
        "image_norm": not opt.option("no_imgnorm", bool),
        "use_abs": opt.option("use_abs", bool),
        "measure": opt.option("measure", str),
        "margin": opt.option("margin", Number),
        "negatives": "hardest" if opt.option("max_violation", bool) else "sum",
    }
    model = assembled(Vse, fields, tensors, sources_of(tensors, image, text), opt.path, "opt: ")
    if cnn:
        warnings.warn(
            f"{opt.path}: its CNN is left out: the model takes what that makes of an image, divided by its L2 norm, as "
            "the image's one region",
            stacklevel=3,
        )
    return model
