"""Checkpoints of the papers' published code as models of crossret."""

from __future__ import annotations

import os

from crossret.compat.checkpoints.contents import Contents, sides
from crossret.compat.checkpoints.mhsan import Words, import_mhsan
from crossret.compat.checkpoints.scan import import_scan
from crossret.compat.checkpoints.vocabularies import read_vocabulary
from crossret.compat.checkpoints.vse import import_vse
from crossret.data.vocabulary import Vocabulary
from crossret.models import Mhsan, Scan, Vse

__all__ = ["Words", "import_checkpoint", "read_vocabulary"]


def import_checkpoint(
    path: str | os.PathLike[str],
    vocabulary: Vocabulary,
    words: Words | None = None,
    *,
    bidirectional: bool = False,
) -> Scan | Vse | Mhsan:
    """The model of a checkpoint that the published code of SCAN, VSE++ or MHSAN wrote; nothing in the file is run.

    Weights are those of the file to the bit, but for SCAN's ``weight_norm``, which is multiplied out. What makes
    features of pixels is left out. Of MHSAN's that is the ResNet, whose feature map is what the model takes; of VSE++'s
    a CNN, where the images were not precomputed, and a warning says so: the model takes what it makes of an image,
    divided by its L2 norm, as the one region.

    Args:
        path: the file of ``torch.save``, in either of its formats.
        vocabulary: SCAN's or VSE++'s, as ``read_vocabulary`` reads it; of MHSAN's, the words to take from ``words``.
        words: MHSAN's word vectors, which its checkpoints have not; None for the others.
        bidirectional: whether MHSAN's text reads both ways, which its tensors do not tell.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: the file is none of these, would run code, or a tensor or an option is missing or does not fit;
            names the file and the tensor or option.
    """
    contents = Contents.of_file(path)
    if "state_dict" in contents.values:
        if words is None:
            raise ValueError(f"{path}: a checkpoint of MHSAN, which has no word vectors: they are needed beside it")
        return import_mhsan(contents, vocabulary, words, bidirectional=bidirectional)
    if words is not None or bidirectional:
        given = "word vectors are" if words is not None else "bidirectional is"
        raise ValueError(f"{path}: not a checkpoint of MHSAN, which alone {given} for")
    image, text = sides(contents)
    opt = contents.inner("opt")
    return (import_scan if "cross_attn" in opt.values else import_vse)(opt, image, text, vocabulary)
