"""SCAN's checkpoints: a model that scores as the published code does, and one error for what is none."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.compat.checkpoints import import_checkpoint
from crossret.data.vocabulary import Vocabulary
from crossret.models.checkpoints import load_model, save_model
from tests.compat import published as formulas
from tests.compat.checkpoints.published import VOCABULARY, save, scan_checkpoint, scan_images, scan_words


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"both_ways": False},
        {"weight_norm": True},
        {"no_imgnorm": True, "no_txtnorm": True},
        {"cross_attn": "i2t", "agg_func": "Mean", "lambda_softmax": 4.0},
        {"raw_feature_norm": "softmax", "agg_func": "Sum", "max_violation": False},
        {"agg_func": "Max", "lambda_softmax": 4},
    ],
    ids=str,
)
def test_the_model_scores_as_the_published_one(tmp_path: Path, changes: dict[str, Any], zipped: bool) -> None:
    checkpoint = scan_checkpoint(**changes)
    path = save(checkpoint, tmp_path / "model_best.pth.tar", zipped=zipped)
    save_model(import_checkpoint(path, VOCABULARY), tmp_path / "model", VOCABULARY)
    model, vocabulary = load_model(tmp_path / "model")
    assert vocabulary.idx2word == VOCABULARY.idx2word
    opt = checkpoint["opt"]
    assert model.config.margin == opt.margin
    assert model.config.negatives == ("hardest" if opt.max_violation else "sum")
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 4, 6, generator=generator)
    tokens, lengths = torch.randint(0, 7, (2, 5), generator=generator), (5, 2)
    words = torch.zeros(2, 5, 5)
    for caption, length in enumerate(lengths):
        words[caption, :length] = scan_words(checkpoint, tokens[caption, :length])
    expected = formulas.scores(scan_images(checkpoint, features).double(), words.double(), lengths, opt)
    with torch.no_grad():
        captions = model.encode_captions(tokens, torch.tensor(lengths))
        scores = model.score(model.encode_images(features), captions)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-5)


def test_an_option_of_later_versions_has_the_default_of_earlier_ones(tmp_path: Path) -> None:
    checkpoint = scan_checkpoint()
    del checkpoint["opt"].no_txtnorm
    assert import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY).config.text_norm


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        (0, "fc.weight", None, r"tensor model\[0\].fc.weight is missing"),
        (0, "fc.bias", torch.full((5,), torch.inf), r"tensor model\[0\].fc.bias is not finite"),
        (0, "fc.weight", torch.eye(5, 6).to_sparse(), r"tensor model\[0\].fc.weight is \(5, 6\)"),
        (0, "fc.bias", torch.zeros(1).expand(2**23), r"tensor model\[0\].fc.bias is .* larger than the file"),
        (1, "rnn.weight_ih_l1", torch.zeros(15, 5), r"unexpected tensor model\[1\].rnn.weight_ih_l1: SCAN's GRU has"),
        (
            1,
            "embed.weight",
            torch.zeros(8, 4),
            r"tensor model\[1\].embed.weight is of 8 words, but the vocabulary has 7",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, part: int, name: str, value: object, message: str) -> None:
    checkpoint = scan_checkpoint()
    tensors = checkpoint["model"][part]
    tensors[name] = value
    if value is None:
        del tensors[name]
    with pytest.raises(ValueError, match=rf"x.pth: {message}"):
        import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY)


ENDLESS = Namespace()
ENDLESS.itself = ENDLESS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agg_func": "Median"}, "opt.agg_func must be one of LogSumExp, Max, Sum, Mean, not 'Median'"),
        ({"cross_attn": "all"}, "opt: cross_attention must be one of"),
        ({"raw_feature_norm": 3}, "opt.raw_feature_norm is 3, which no published code writes"),
        ({"lambda_softmax": float("nan")}, "opt: lambda_softmax must be finite"),
        ({"margin": ENDLESS}, "opt.margin is <Namespace instance"),
    ],
)
def test_options_that_mean_nothing_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"x.pth: {message}"):
        import_checkpoint(save(scan_checkpoint(**changes), tmp_path / "x.pth"), VOCABULARY)


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


def test_what_is_mhsans_alone_is_refused(tmp_path: Path) -> None:
    path = save(scan_checkpoint(), tmp_path / "x.pth")
    with pytest.raises(ValueError, match="not a checkpoint of MHSAN, which alone bidirectional is for"):
        import_checkpoint(path, VOCABULARY, bidirectional=True)
    with pytest.raises(ValueError, match="of 7 words, but the vocabulary has 5"):
        import_checkpoint(path, Vocabulary(["dog"]))
