"""Checkpoints that are none of published code, or do not fit: one error names the file and the tensor or option."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.compat.checkpoints import Words, import_checkpoint
from crossret.data.vocabulary import Vocabulary
from tests.compat.checkpoints.published import (
    VOCABULARY,
    mhsan_checkpoint,
    save,
    scan_checkpoint,
    vse_checkpoint,
    word_files,
)

RNN = "cap_emb.module.rnn.rnn_lst"


@pytest.mark.parametrize(
    ("make", "part", "name", "value", "message"),
    [
        (scan_checkpoint, 0, "fc.weight", None, r"tensor model\[0\].fc.weight is missing"),
        (scan_checkpoint, 0, "fc.bias", torch.full((5,), torch.inf), r"tensor model\[0\].fc.bias is not finite"),
        (scan_checkpoint, 0, "fc.weight", torch.eye(5, 6).to_sparse(), r"tensor model\[0\].fc.weight is \(5, 6\)"),
        (scan_checkpoint, 0, "fc.bias", torch.zeros(1).expand(2**23), r"model\[0\].fc.bias is .* larger than the file"),
        (scan_checkpoint, 1, "rnn.weight_ih_l1", torch.zeros(15, 5), r"unexpected .*rnn.weight_ih_l1: SCAN's GRU has"),
        (scan_checkpoint, 1, "embed.weight", torch.zeros(8, 4), "is of 8 words, but the vocabulary has 7"),
        (vse_checkpoint, 0, "fc.weight_g", torch.tensor(1.0), r"unexpected .*fc.weight_g: VSE\+\+'s code has no such"),
        (vse_checkpoint, 1, "rnn.weight_hh_l0", torch.zeros(15, 4), r"has shape \(15, 4\), expected \(15, 5\)"),
        (vse_checkpoint, 1, "rnn.weight_ih_l0_reverse", torch.zeros(15, 4), r"unexpected .*rnn.weight_ih_l0_reverse"),
        (mhsan_checkpoint, None, "img_emb.module.spaConv.weight", torch.zeros(8, 6, 3, 3), r"\(8, 6, 3, 3\), expected"),
        (
            mhsan_checkpoint,
            None,
            f"{RNN}.1.weight",
            torch.zeros(8, 25),
            r"rnn_lst\.1\.weight has shape .* 3 or 4 times 8",
        ),
        (mhsan_checkpoint, None, f"{RNN}.0.scale_x", torch.tensor([1.7]), "scale_x is not 1: highways are not scaled"),
        (mhsan_checkpoint, None, f"{RNN}.3.weight", torch.zeros(8, 24), r"rnn_lst\.2\.weight is missing"),
        (mhsan_checkpoint, None, "fc.weight", torch.zeros(1), r"fc\.weight is there twice, with and without module"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, make: Callable[[], dict[str, Any]], part: int | None, name: str, value: object, message: str
) -> None:
    checkpoint = make()
    tensors = checkpoint["state_dict"] if part is None else checkpoint["model"][part]
    tensors[name] = value
    if value is None:
        del tensors[name]
    words = Words(*word_files(tmp_path)) if make is mhsan_checkpoint else None
    with pytest.raises(ValueError, match=rf"x.pth: .*{message}"):
        import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY, words)


ENDLESS = Namespace()
ENDLESS.itself = ENDLESS


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (
            scan_checkpoint,
            {"agg_func": "Median"},
            "opt.agg_func must be one of LogSumExp, Max, Sum, Mean, not 'Median'",
        ),
        (scan_checkpoint, {"cross_attn": "all"}, "opt: cross_attention must be one of"),
        (scan_checkpoint, {"raw_feature_norm": 3}, "opt.raw_feature_norm is 3, which no published code writes"),
        (scan_checkpoint, {"lambda_softmax": float("nan")}, "opt: lambda_softmax must be finite"),
        (scan_checkpoint, {"margin": ENDLESS}, "opt.margin is <Namespace instance"),
        (vse_checkpoint, {"measure": "l2"}, "opt: measure must be one of cosine, order, not 'l2'"),
        (vse_checkpoint, {"margin": -1.0}, "opt: margin must be at least 0"),
    ],
)
def test_options_that_mean_nothing_are_named(
    tmp_path: Path, make: Callable[[], dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    checkpoint = make()
    vars(checkpoint["opt"]).update(changes)
    with pytest.raises(ValueError, match=rf"x.pth: {message}"):
        import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        *((value, "not a checkpoint: no dictionary by strings") for value in ([1], torch.zeros(1), {1: 2})),
        ({"model": [1, 2, 3]}, r"no checkpoint of SCAN, VSE\+\+ or MHSAN: 'model' is no image and text"),
        ({"model": [{}, {}]}, "opt is no dictionary by strings"),
        ({"model": [{}, 3], "opt": {"cross_attn": "t2i"}}, r"model\[1\] is no dictionary by strings"),
    ],
)
def test_other_checkpoints_are_told(tmp_path: Path, contents: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"x.pth: {message}"):
        import_checkpoint(save(contents, tmp_path / "x.pth"), VOCABULARY)


def test_words_that_do_not_fit_are_named(tmp_path: Path) -> None:
    scan, mhsan = save(scan_checkpoint(), tmp_path / "scan.pth"), save(mhsan_checkpoint(), tmp_path / "mhsan.pth")
    with pytest.raises(ValueError, match="not a checkpoint of MHSAN, which alone bidirectional is for"):
        import_checkpoint(scan, VOCABULARY, bidirectional=True)
    with pytest.raises(ValueError, match="of 7 words, but the vocabulary has 5"):
        import_checkpoint(scan, Vocabulary(["dog"]))
    with pytest.raises(ValueError, match=r"mhsan.pth: a checkpoint of MHSAN, which has no word vectors"):
        import_checkpoint(mhsan, VOCABULARY)
    table, dictionary = word_files(tmp_path, ("eos", "unk"))
    with pytest.raises(ValueError, match=r"dictionary.txt: has no word UNK"):
        import_checkpoint(mhsan, VOCABULARY, Words(table, dictionary))
    dictionary.write_text("eos\nUNK\ncat\n")
    np.save(table, np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match=r"utable.npy: vectors have 5 dimensions, but the model reads 4"):
        import_checkpoint(mhsan, VOCABULARY, Words(table, dictionary))
