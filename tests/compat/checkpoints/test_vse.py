"""VSE++'s checkpoints: a model that scores as the published code does, and one error for what is none."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.compat.checkpoints import import_checkpoint
from crossret.models import Scan, Vse
from crossret.models.checkpoints import load_model, save_model
from tests.compat.checkpoints.published import VOCABULARY, save, scan_checkpoint, vse_checkpoint, vse_modules


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"no_imgnorm": True, "max_violation": False},
        {"measure": "order"},
        {"measure": "order", "use_abs": True, "margin": 0.05},
        {"num_layers": 2},
    ],
    ids=str,
)
def test_the_model_scores_as_the_published_one(tmp_path: Path, changes: dict[str, Any], zipped: bool) -> None:
    modules = vse_modules(**changes)
    path = save(vse_checkpoint(modules), tmp_path / "model_best.pth.tar", zipped=zipped)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        save_model(import_checkpoint(path, VOCABULARY), tmp_path / "model", VOCABULARY)
    model, _ = load_model(tmp_path / "model")
    assert isinstance(model, Vse)
    opt = modules[0].opt
    assert model.config.margin == opt.margin
    assert model.config.negatives == ("hardest" if opt.max_violation else "sum")
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 6, generator=generator)
    tokens, lengths = torch.randint(0, 7, (2, 5), generator=generator), (5, 2)
    with torch.no_grad():
        images = modules[0](features)
        captions = torch.stack([modules[1](words[:length]) for words, length in zip(tokens, lengths, strict=True)])
        scores = model.score(
            model.encode_images(features[:, None]), model.encode_captions(tokens, torch.tensor(lengths))
        )
    above = (captions[None] - images[:, None]).clamp(min=0)
    expected = -above.pow(2).sum(2).sqrt() if opt.measure == "order" else images @ captions.T
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-6)


def test_what_is_before_the_linear_layer_is_left_out_with_a_warning(tmp_path: Path) -> None:
    checkpoint = vse_checkpoint(vse_modules(cnn=True))
    with pytest.warns(UserWarning, match=r"x.pth: its CNN is left out: .* divided by its L2 norm"):
        model = import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY)
    assert isinstance(model, Vse)
    assert torch.equal(model.image.fc.weight, checkpoint["model"][0]["fc.weight"])
    assert not any("cnn" in name for name in model.state_dict())


def test_scan_and_vse_are_told_apart_by_what_scan_alone_has(tmp_path: Path) -> None:
    checkpoint = scan_checkpoint(both_ways=False, measure="cosine", use_abs=False)
    assert isinstance(import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY), Scan)
    del checkpoint["opt"].cross_attn
    assert isinstance(import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY), Vse)


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        (0, "fc.weight_g", torch.tensor(1.0), r"unexpected tensor model\[0\].fc.weight_g: VSE\+\+'s code has no such"),
        (1, "rnn.weight_hh_l0", torch.zeros(15, 4), r"rnn.weight_hh_l0 has shape \(15, 4\), expected \(15, 5\)"),
        (1, "rnn.weight_ih_l0_reverse", torch.zeros(15, 4), r"unexpected tensor model\[1\].rnn.weight_ih_l0_reverse"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, part: int, name: str, value: object, message: str) -> None:
    checkpoint = vse_checkpoint()
    tensors = checkpoint["model"][part]
    tensors[name] = value
    if value is None:
        del tensors[name]
    with pytest.raises(ValueError, match=rf"x.pth: .*{message}"):
        import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measure": "l2"}, "opt: measure must be one of cosine, order, not 'l2'"),
        ({"margin": -1.0}, "opt: margin must be at least 0"),
    ],
)
def test_options_that_mean_nothing_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    checkpoint = vse_checkpoint()
    vars(checkpoint["opt"]).update(changes)
    with pytest.raises(ValueError, match=rf"x.pth: {message}"):
        import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY)
