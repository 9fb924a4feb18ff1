"""MHSAN's published checkpoints, {epoch, state_dict, best_val, args_dict, optimizer}, as its model here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crossret.compat.checkpoints.contents import Contents, assembled
from crossret.data.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from crossret.data.word_vectors.skip_thoughts import UNKNOWN_WORD, open_table
from crossret.models import Mhsan

_LAYER = re.compile(r"cap_emb\.rnn\.rnn_lst\.([0-9]{1,3})\.(weight|weight_c|bias|scale_x)")
_NAMES = {  # ours by theirs, with their number of dimensions
    "img_emb.spaConv.bias": ("image.bias", 1),
    "img_emb.fc1.weight": ("image_heads.hidden.weight", 2),
    "img_emb.fc2.weight": ("image_heads.heads.weight", 2),
    "fc.weight": ("image_heads.project.weight", 2),
    "fc.bias": ("image_heads.project.bias", 1),
    "cap_emb.ws1.weight": ("text_heads.hidden.weight", 2),
    "cap_emb.ws2.weight": ("text_heads.heads.weight", 2),
    "cap_emb.fc.weight": ("text_heads.project.weight", 2),
    "cap_emb.fc.bias": ("text_heads.project.bias", 1),
}
_CONVOLUTION = "img_emb.spaConv.weight"
_BACKBONE = "img_emb.base_layer."


@dataclass(frozen=True)
class Words:
    """Skip-thoughts' word vectors, which MHSAN's text reads.

    Attributes:
        table: utable.npy, (words, 620) float32.
        dictionary: dictionary.txt, a word a line, in the table's order; "UNK" is what others have.
    """

    table: Path
    dictionary: Path


def import_mhsan(contents: Contents, vocabulary: Vocabulary, words: Words, *, bidirectional: bool) -> Mhsan:
    """The model; see ``crossret.compat.checkpoints.import_checkpoint``."""
    state = _without_data_parallel(contents.inner("state_dict"))
    layers = 0
    for name in state.values:
        layer = _LAYER.fullmatch(name)
        layers = max(layers, 1 + int(layer[1])) if layer else layers
        if not layer and name not in (*_NAMES, _CONVOLUTION) and not name.startswith(_BACKBONE):
            raise ValueError(
                f"{state.path}: unexpected tensor {state.within}{name}: MHSAN's code has none of that name"
            )
    if not layers:
        raise ValueError(f"{state.path}: tensor {state.within}cap_emb.rnn.rnn_lst.0.weight is missing")
    tensors = {ours: state.tensor(theirs, dims) for theirs, (ours, dims) in _NAMES.items()}
    sources = {ours: state.within + theirs for theirs, (ours, _) in _NAMES.items()}
    tensors["image.weight"] = _of_one_pixel(state)
    sources["image.weight"] = state.within + _CONVOLUTION
    feature_dim = tensors["image.weight"].shape[0]
    word_dim = 0
    for number in range(layers):
        theirs = f"cap_emb.rnn.rnn_lst.{number}"
        maps, peephole, bias = _layer(state, theirs, feature_dim)
        tensors |= {
            f"text.layers.{number}.weight": maps,
            f"text.layers.{number}.peephole": peephole,
            f"text.layers.{number}.bias": bias,
        }
        sources |= dict.fromkeys(tensors.keys() - sources.keys(), f"{state.within}{theirs}.weight")
        word_dim = word_dim or maps.shape[2]
    tensors["text.embed.weight"] = _embedding(words, vocabulary, word_dim)
    sources["text.embed.weight"] = str(words.table)
    fields = {
        "image_dim": tensors["image.weight"].shape[1],
        "vocabulary_size": len(vocabulary),
        "feature_dim": feature_dim,
        "embed_dim": len(tensors["image_heads.project.weight"]),
        "word_dim": word_dim,
        "attention_dim": len(tensors["image_heads.hidden.weight"]),
        "heads": len(tensors["image_heads.heads.weight"]),
        "text_layers": layers,
        "bidirectional": bidirectional,
        "freeze_words": True,  # the published code has no embedding to train
    }
    return assembled(Mhsan, fields, tensors, sources, state.path)


def _without_data_parallel(state: Contents) -> Contents:
    """Contents by names without the part "module" that torch.nn.DataParallel puts between."""
    names: dict[str, object] = {}
    for theirs, value in state.values.items():
        name = re.sub(r"(^|\.)module\.", r"\1", theirs)
        if name in names:
            raise ValueError(f"{state.path}: tensor {state.within}{name} is there twice, with and without module")
        names[name] = value
    return Contents(state.path, names, state.within)


def _of_one_pixel(state: Contents) -> Tensor:
    """The linear layer that a convolution of one pixel is."""
    weight = state.tensor(_CONVOLUTION, 4)
    if weight.shape[2:] != (1, 1):
        raise ValueError(
            f"{state.path}: tensor {state.within}{_CONVOLUTION} has shape {tuple(weight.shape)}, expected (…, …, 1, 1)"
        )
    return weight.flatten(1)


def _layer(state: Contents, name: str, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight (maps, D, input), peephole (2, D) and bias (2, D) of a layer of the package sru.

    It multiplies words by a matrix (input, D · maps), of which the maps of a state are next to each other.
    """
    weight = state.tensor(f"{name}.weight", 2)
    maps, rest = divmod(weight.shape[1], dim)
    if rest or maps not in (3, 4):
        raise ValueError(
            f"{state.path}: tensor {state.within}{name}.weight has shape {tuple(weight.shape)}, "
            f"expected 3 or 4 times {dim} columns"
        )
    peephole, bias = (_of_gates(state, f"{name}.{part}", dim) for part in ("weight_c", "bias"))
    scale = f"{name}.scale_x"
    if scale in state.values and state.tensor(scale, 1).tolist() != [1.0]:
        raise ValueError(f"{state.path}: tensor {state.within}{scale} is not 1: highways are not scaled here")
    return weight.view(-1, dim, maps).permute(2, 1, 0).contiguous(), peephole, bias


def _of_gates(state: Contents, name: str, dim: int) -> Tensor:
    """A vector of the forget gate and one of the reset gate, (2, D)."""
    both = state.tensor(name, 1)
    if len(both) != 2 * dim:
        raise ValueError(
            f"{state.path}: tensor {state.within}{name} has shape {tuple(both.shape)}, expected ({2 * dim},)"
        )
    return both.view(2, dim)


def _embedding(words: Words, vocabulary: Vocabulary, word_dim: int) -> Tensor:
    """A row a word: the dictionary's; that of its "UNK" for words that it lacks; zeros for <pad>, <start> and <end>.

    Published captions have none of these three.
    """
    wanted = {word.encode() for word in vocabulary.idx2word} | {UNKNOWN_WORD}
    table, rows = open_table(words.table, words.dictionary, wanted)
    if UNKNOWN_WORD not in rows:
        raise ValueError(f"{words.dictionary}: has no word UNK, which stands for those that it lacks")
    if table.shape[1] != word_dim:
        raise ValueError(f"{words.table}: vectors have {table.shape[1]} dimensions, but the model reads {word_dim}")
    unknown = rows[UNKNOWN_WORD]
    places = [rows.get(word.encode(), unknown) for word in vocabulary.idx2word]
    places[UNKNOWN] = unknown
    with np.errstate(over="ignore"):
        embedding = torch.from_numpy(table[places].astype(np.float32))
    embedding[[PAD, START, END]] = 0
    finite = embedding.isfinite().all(1)
    if not finite.all():
        word = vocabulary.idx2word[int((~finite).nonzero()[0])]
        raise ValueError(f"{words.table}: the vector of {word!r} is not finite in float32")
    return embedding
