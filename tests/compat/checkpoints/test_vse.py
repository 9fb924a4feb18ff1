"""VSE++'s checkpoints: a model that scores as the published code does."""

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
def test_the_model_scores_as_the_published_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    modules = vse_modules(**changes)
    path = save(vse_checkpoint(modules), tmp_path / "model_best.pth.tar")
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
