"""MHSAN: scores and attention of single pairs from the paper's equations, in float64; pixels; stages; loss by loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crossret.data.vocabulary import Vocabulary
from crossret.models import Mhsan
from crossret.models.checkpoints import load_model, save_model, with_config
from tests.models.batch import FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, cosine, double, encode, items, make
from tests.models.loss_loops import triplet_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")
PIXELS = torch.randn(3, 3, 4, 6, generator=torch.Generator().manual_seed(5))


def embed_by_hand(side: Any, rows: Tensor, activation: Any) -> tuple[Tensor, Tensor]:
    """Equations 1 and 2 and the projection, of (L, d): the embedding (d',) and the weights (r, L)."""
    logits = side.heads.weight @ activation(side.hidden.weight @ rows.T)
    weights = torch.stack([torch.exp(head) / torch.exp(head).sum() for head in logits])
    pooled = [sum(weight * row for weight, row in zip(head, rows, strict=True)) for head in weights]
    embedding = side.project.weight @ torch.cat(pooled) + side.project.bias
    return embedding / embedding.norm(), weights


def images_by_hand(model: Any, features: Tensor, lengths: Tensor) -> list[tuple[Tensor, Tensor]]:
    mapped = [rows @ model.image.weight.T + model.image.bias for rows in items(features, lengths)]
    return [embed_by_hand(model.image_heads, rows, torch.relu) for rows in mapped]


def captions_by_hand(model: Any) -> list[tuple[Tensor, Tensor]]:
    words = items(model.text(TOKENS, LENGTHS), LENGTHS)
    return [embed_by_hand(model.text_heads, rows, torch.tanh) for rows in words]


@pytest.mark.parametrize("fields", [{}, {"bidirectional": True}, {"heads": 1}, {"embed_dim": 5}], ids=str)
def test_scores_are_the_paper_s(fields: dict[str, Any]) -> None:
    model = double(make("mhsan", **fields))
    with torch.no_grad():
        images, captions = encode(model)
        scores = model.score(images, captions)
        (attention,) = model.attention(images, captions)
        of_images, of_captions = images_by_hand(model, FEATURES, REGION_LENGTHS), captions_by_hand(model)
        for i, (embedding, weights) in enumerate(of_images):
            expected = torch.stack([cosine(embedding, other) for other, _ in of_captions])
            torch.testing.assert_close(scores[i], expected, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(attention.weights[i, :, : weights.shape[1]], weights)
            words = of_captions[i][1]
            torch.testing.assert_close(attention.word_weights[i, :, : words.shape[1]], words)
            assert embedding.shape == images.vectors["embedding"][i].shape


def with_backbone(**fields: Any) -> Mhsan:
    config = make("mhsan", **fields).config
    torch.manual_seed(0)
    return Mhsan(config, nn.Conv2d(3, config.image_dim, 2, stride=2)).eval()


def test_pixels_are_read_through_the_backbone() -> None:
    model = with_backbone()
    with torch.no_grad():
        feature_map = model.backbone(PIXELS)
        places = torch.stack([feature_map[:, :, y, x] for y in range(2) for x in range(3)], 1)
        images, expected = model.encode_images(PIXELS), model.encode_images(places)
    assert images.lengths.tolist() == [6, 6, 6]
    torch.testing.assert_close(images.sequences, expected.sequences)
    torch.testing.assert_close(images.vectors["embedding"], expected.vectors["embedding"])
    with pytest.raises(ValueError, match=r"features must have shape \(n, R, 6\), got \(3, 3, 4, 6\)"):
        make("mhsan").encode_images(PIXELS)


def test_the_backbone_is_trained() -> None:
    model = with_backbone()
    model.loss(model.encode_images(PIXELS), model.encode_captions(TOKENS, LENGTHS))["loss"].backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.backbone.parameters())


VOCABULARY = Vocabulary([f"word{number}" for number in range(7)])


def normalizing(seed: int) -> nn.Sequential:
    """A backbone with statistics of batches, whose second layer has the weights of the first."""
    torch.manual_seed(seed)
    first, second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    second.weight = first.weight
    return nn.Sequential(first, second, nn.Conv2d(3, 6, 2, stride=2), nn.BatchNorm2d(6))


def saved_with_backbone(directory: Path) -> Mhsan:
    model = Mhsan(make("mhsan").config, normalizing(0)).train()
    model.encode_images(PIXELS)
    save_model(model, directory, VOCABULARY)
    return model.eval()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_model_with_a_backbone_is_saved_and_loaded(tmp_path: Path, device: str) -> None:
    model, module = saved_with_backbone(tmp_path), normalizing(1).to(device)
    module[2].bias.requires_grad_(False)
    loaded, vocabulary = load_model(tmp_path, backbone=module)
    assert loaded.backbone is module
    assert vocabulary.word2idx == VOCABULARY.word2idx
    assert not loaded.training and not module.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert module[3].num_batches_tracked == 1
    assert torch.equal(
        loaded.encode_images(PIXELS).vectors["embedding"], model.encode_images(PIXELS).vectors["embedding"]
    )
    assert [name for name, weight in loaded.named_parameters() if not weight.requires_grad] == ["backbone.2.bias"]
    assert device == "meta" or module[0].weight is module[1].weight
    changed = with_config(loaded, replace(loaded.config, margin=0.5), "here")
    assert changed.backbone is module
    assert changed.config.margin == 0.5


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, r"reads pixels through a backbone, of which the file has the 11 tensors but not the module: load it in"),
        (
            nn.Sequential(*normalizing(0)[:3], nn.BatchNorm2d(6, track_running_stats=False)),
            r"backbone is not the one of the model: .*'backbone\.3\.running_mean' is \(6,\) torch\.float32 in the file "
            r"and missing in the module; 'backbone\.3\.running_var' is .* missing in the module$",
        ),
    ],
    ids=["none", "no buffers"],
)
def test_a_backbone_that_does_not_fit_is_named(tmp_path: Path, module: nn.Module | None, message: str) -> None:
    saved_with_backbone(tmp_path)
    with pytest.raises(ValueError, match=rf"model\.safetensors: .*{message}"):
        load_model(tmp_path, backbone=module)


@pytest.mark.parametrize(
    ("kind", "message"), [("mhsan", "the model was saved without one"), ("scan", "scan takes none")]
)
def test_a_model_without_a_backbone_takes_none(tmp_path: Path, kind: str, message: str) -> None:
    save_model(make(kind), tmp_path, VOCABULARY)
    with pytest.raises(ValueError, match=rf"backbone was given, but {message}"):
        load_model(tmp_path, backbone=normalizing(0))


def test_stages_are_those_of_section_3_5() -> None:
    model = with_backbone(text_from_epoch=4, image_from_epoch=19)
    names = {name for name, _ in model.named_parameters()}
    projection = {"image_heads.project.weight", "image_heads.project.bias"}
    text = {name for name in names if name.split(".")[0] in ("text", "text_heads")}
    for epochs, trained in (((0, 3), projection), ((4, 18), projection | text), ((19, 40), names)):
        for epoch in epochs:
            assert {name for name in names if model.trains(name, epoch)} == trained


@pytest.mark.parametrize(("negatives", "squared"), [("hardest", False), ("sum", True)])
def test_loss_is_equations_3_to_5(negatives: str, squared: bool) -> None:
    model = make("mhsan", margin=0.6, negatives=negatives, diversity_weight=0.3, diversity_squared=squared)
    images, captions = encode(model)
    terms = {name: term.item() for name, term in model.loss(images, captions).items()}
    exact = double(model)
    with torch.no_grad():
        triplet = triplet_by_hand(model.score(images, captions), 0.6, negatives) / 3
        diversity = 0.0
        for _, weights in [*images_by_hand(exact, FEATURES, REGION_LENGTHS), *captions_by_hand(exact)]:
            square = sum((float(a @ b) - (m == n)) ** 2 for m, a in enumerate(weights) for n, b in enumerate(weights))
            diversity += (square if squared else square**0.5) / 3
    assert triplet > 0
    assert terms == pytest.approx(
        {"loss": triplet + 0.3 * diversity, "triplet": triplet, "diversity": diversity}, rel=1e-5
    )
