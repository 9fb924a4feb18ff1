"""Checkpoints as the published code of SCAN, VSE++ and MHSAN wrote them, and what its models make of their input."""

from __future__ import annotations

from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crossret.data.vocabulary import Vocabulary

VOCABULARY = Vocabulary(["dog", "cat", "mat"])
IMAGE_DIM, EMBED_DIM, WORD_DIM = 6, 5, 4
HEADS, HIDDEN, FEATURE_DIM = 2, 3, 8
EPS = 1e-8


def scan_checkpoint(*, both_ways: bool = True, weight_norm: bool = False, **options: Any) -> dict[str, Any]:
    """With train.py's options, some of them changed."""
    torch.manual_seed(0)
    rnn = nn.GRU(WORD_DIM, EMBED_DIM, 1, batch_first=True, bidirectional=both_ways)
    image = OrderedDict([("fc.weight", torch.randn(EMBED_DIM, IMAGE_DIM)), ("fc.bias", torch.randn(EMBED_DIM))])
    if weight_norm:
        direction = image.pop("fc.weight")
        image.update({"fc.weight_g": torch.tensor(3.0), "fc.weight_v": direction})
    text = OrderedDict([("embed.weight", torch.randn(len(VOCABULARY), WORD_DIM))])
    text.update({f"rnn.{name}": value for name, value in rnn.state_dict().items()})
    opt = {
        "data_name": "f30k_precomp", "margin": 0.3, "max_violation": True, "no_imgnorm": False, "no_txtnorm": False,
        "raw_feature_norm": "clipped_l2norm", "agg_func": "LogSumExp", "cross_attn": "t2i", "lambda_lse": 6.0,
        "lambda_softmax": 9.0, "bi_gru": both_ways, "num_layers": 1, "vocab_size": len(VOCABULARY),
    }  # fmt: skip
    return {
        "epoch": 3, "model": [image, text], "best_rsum": np.float64(321.5), "opt": Namespace(**{**opt, **options}),
        "Eiters": 7,
    }  # fmt: skip


def save(checkpoint: object, path: Path, *, zipped: bool = True) -> Path:
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    return path


def unit(x: Tensor) -> Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True).sqrt() + EPS)


def scan_images(checkpoint: dict[str, Any], features: Tensor) -> Tensor:
    part = checkpoint["model"][0]
    weight = part.get("fc.weight")
    if weight is None:
        weight = part["fc.weight_v"] * part["fc.weight_g"] / part["fc.weight_v"].pow(2).sum().sqrt()
    regions = features @ weight.T + part["fc.bias"]
    return regions if checkpoint["opt"].no_imgnorm else unit(regions)


def scan_words(checkpoint: dict[str, Any], tokens: Tensor) -> Tensor:
    """Of one caption, (W,) to (W, D): gates of Cho et al., as torch documents them."""
    part = checkpoint["model"][1]
    words = part["embed.weight"][tokens]
    ways = []
    for suffix in ("", "_reverse") if "rnn.weight_ih_l0_reverse" in part else ("",):
        state, states = torch.zeros(EMBED_DIM), []
        for word in words.flip(0) if suffix else words:
            inputs = part[f"rnn.weight_ih_l0{suffix}"] @ word + part[f"rnn.bias_ih_l0{suffix}"]
            before = part[f"rnn.weight_hh_l0{suffix}"] @ state + part[f"rnn.bias_hh_l0{suffix}"]
            (r, z, n), (hr, hz, hn) = inputs.chunk(3), before.chunk(3)
            update = (z + hz).sigmoid()
            state = (1 - update) * (n + (r + hr).sigmoid() * hn).tanh() + update * state
            states.append(state)
        ways.append(torch.stack(states[::-1] if suffix else states))
    mean = sum(ways[1:], ways[0]) / len(ways)
    return mean if checkpoint["opt"].no_txtnorm else unit(mean)


class VseImages(nn.Module):
    """One vector an image, precomputed, or of a CNN, of which one tensor stands for all."""

    def __init__(self, opt: Namespace, *, cnn: bool) -> None:
        super().__init__()
        self.opt = opt
        if cnn:
            self.cnn = nn.Linear(2, 2)
        self.fc = nn.Linear(opt.img_dim, opt.embed_size)

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.fc(images)
        if not self.opt.no_imgnorm:
            vectors = vectors / vectors.norm(dim=1, keepdim=True)
        return vectors.abs() if self.opt.use_abs else vectors


class VseCaptions(nn.Module):
    def __init__(self, opt: Namespace) -> None:
        super().__init__()
        self.opt = opt
        self.embed = nn.Embedding(opt.vocab_size, opt.word_dim)
        self.rnn = nn.GRU(opt.word_dim, opt.embed_size, opt.num_layers, batch_first=True)

    def forward(self, caption: Tensor) -> Tensor:
        """Of one caption, (W,) to (D,)."""
        vector: Tensor = self.rnn(self.embed(caption)[None])[0][0, -1]
        vector = vector / vector.norm()
        return vector.abs() if self.opt.use_abs else vector


def vse_modules(*, cnn: bool = False, **options: Any) -> tuple[VseImages, VseCaptions]:
    """With train.py's options, some of them changed."""
    torch.manual_seed(0)
    opt = {
        "data_name": "coco" if cnn else "coco_precomp", "margin": 0.3, "max_violation": True, "no_imgnorm": False,
        "use_abs": False, "measure": "cosine", "num_layers": 1, "vocab_size": len(VOCABULARY), "img_dim": IMAGE_DIM,
        "embed_size": EMBED_DIM, "word_dim": WORD_DIM, "finetune": cnn, "cnn_type": "vgg19",
    }  # fmt: skip
    namespace = Namespace(**{**opt, **options})
    return VseImages(namespace, cnn=cnn), VseCaptions(namespace)


def vse_checkpoint(modules: tuple[VseImages, VseCaptions] | None = None) -> dict[str, Any]:
    image, text = modules or vse_modules()
    parts = [image.state_dict(), text.state_dict()]
    return {"epoch": 3, "model": parts, "best_rsum": 321.5, "opt": image.opt, "Eiters": 7}


def mhsan_checkpoint(*, layers: int = 2, scale: float | None = 1.0) -> dict[str, Any]:
    """With a backbone of one tensor; DataParallel names as train.py has them."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    state = OrderedDict(
        [
            ("img_emb.module.base_layer.0.weight", randn(2, 3, 7, 7)),
            ("img_emb.module.spaConv.weight", randn(FEATURE_DIM, IMAGE_DIM, 1, 1)),
            ("img_emb.module.spaConv.bias", randn(FEATURE_DIM)),
            ("img_emb.module.fc1.weight", randn(HIDDEN, FEATURE_DIM)),
            ("img_emb.module.fc2.weight", randn(HEADS, HIDDEN)),
            ("fc.module.weight", randn(EMBED_DIM, HEADS * FEATURE_DIM)),
            ("fc.module.bias", randn(EMBED_DIM)),
            ("cap_emb.module.ws1.weight", randn(HIDDEN, FEATURE_DIM)),
            ("cap_emb.module.ws2.weight", randn(HEADS, HIDDEN)),
            ("cap_emb.module.fc.weight", randn(EMBED_DIM, HEADS * FEATURE_DIM)),
            ("cap_emb.module.fc.bias", randn(EMBED_DIM)),
        ]
    )
    for layer in range(layers):
        name = f"cap_emb.module.rnn.rnn_lst.{layer}"
        state[f"{name}.weight"] = randn(FEATURE_DIM if layer else WORD_DIM, FEATURE_DIM * (3 if layer else 4))
        state[f"{name}.weight_c"], state[f"{name}.bias"] = randn(2 * FEATURE_DIM), randn(2 * FEATURE_DIM)
        if scale is not None:
            state[f"{name}.scale_x"] = torch.tensor([scale])
    args = Namespace(attn_hop=HEADS, attn_hidden=HIDDEN, sru=layers, dimemb=FEATURE_DIM, lr_decay_list=[3, 7])
    optimizer = {"state": {}, "param_groups": [{"lr": 0.005, "params": [0]}]}
    return {"epoch": 1, "state_dict": state, "best_val": 12.5, "args_dict": args, "optimizer": optimizer}


def word_files(directory: Path, words: tuple[str, ...] = ("eos", "UNK", "cat", "dog")) -> tuple[Path, Path]:
    """utable.npy and dictionary.txt."""
    table, dictionary = directory / "utable.npy", directory / "dictionary.txt"
    np.save(table, np.random.default_rng(0).standard_normal((len(words), WORD_DIM)).astype(np.float32))
    dictionary.write_text("".join(f"{word}\n" for word in words))
    return table, dictionary


def pooled(features: Tensor, hidden: Tensor, heads: Tensor, activation: Any) -> Tensor:
    """(L, D) to (heads · D,)."""
    weights = (activation(features @ hidden.T) @ heads.T).softmax(0)
    return (weights.T @ features).flatten()


def mhsan_image(checkpoint: dict[str, Any], features: Tensor) -> Tensor:
    state = checkpoint["state_dict"]
    regions = features @ state["img_emb.module.spaConv.weight"][:, :, 0, 0].T + state["img_emb.module.spaConv.bias"]
    heads = state["img_emb.module.fc1.weight"], state["img_emb.module.fc2.weight"]
    out = state["fc.module.weight"] @ pooled(regions, *heads, torch.relu) + state["fc.module.bias"]
    return out / out.norm()


def mhsan_caption(checkpoint: dict[str, Any], words: Tensor) -> Tensor:
    """Of one caption's vectors (W, word_dim), by Lei et al.'s equations in the package's layout, one way."""
    state = checkpoint["state_dict"]
    layer = 0
    while f"cap_emb.module.rnn.rnn_lst.{layer}.weight" in state:
        name = f"cap_emb.module.rnn.rnn_lst.{layer}"
        forget_c, reset_c = state[f"{name}.weight_c"].chunk(2)
        forget_b, reset_b = state[f"{name}.bias"].chunk(2)
        cell, outputs = torch.zeros(FEATURE_DIM), []
        for word in words:
            maps = (word @ state[f"{name}.weight"]).view(FEATURE_DIM, -1)
            forget = (maps[:, 1] + cell * forget_c + forget_b).sigmoid()
            reset = (maps[:, 2] + cell * reset_c + reset_b).sigmoid()
            cell = forget * cell + (1 - forget) * maps[:, 0]
            highway = maps[:, 3] if maps.shape[1] == 4 else word
            outputs.append(reset * cell.tanh() + (1 - reset) * highway)
        words, layer = torch.stack(outputs), layer + 1
    heads = state["cap_emb.module.ws1.weight"], state["cap_emb.module.ws2.weight"]
    out = state["cap_emb.module.fc.weight"] @ pooled(words, *heads, torch.tanh) + state["cap_emb.module.fc.bias"]
    return out / out.norm()
