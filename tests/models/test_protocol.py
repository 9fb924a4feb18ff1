"""Every model and variant: pairs, padding, NaN, long captions, files, precision, dropout, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from crossret.data.vocabulary import Vocabulary
from crossret.encoders import NgramEncoder, SruEncoder, TransformerEncoder, WordEncoder
from crossret.models.checkpoints import load_model, save_model
from crossret.models.encoded import Encoded
from tests.models.batch import (
    BOXES,
    EVERY_LOSS,
    EVERY_MODEL,
    EVERY_VARIANT,
    FEATURES,
    LENGTHS,
    REGION_LENGTHS,
    TOKENS,
    double,
    encode,
    make,
    of,
)
from tests.models.loss_loops import triplet_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY = Vocabulary(["a", "black", "dog", "on", "the", "red", "mat"])


@EVERY_VARIANT
def test_pairs_are_entries_of_the_score_matrix(variant: str) -> None:
    model, pairs = of(variant), torch.tensor([[0, 2], [2, 1], [0, 2]])
    with torch.no_grad():
        images, captions = encode(model)
        captions = captions[torch.tensor([0, 1, 2, 0])]  # as many of one side as of the other would hide a transpose
        scores = model.score(images, captions)
        listed = model.score(images, captions, pairs)
    assert scores.shape == (3, 4)
    assert scores.dtype == listed.dtype == torch.float32
    torch.testing.assert_close(listed, scores[pairs[:, 0], pairs[:, 1]], rtol=1e-5, atol=1e-6)


@EVERY_VARIANT
def test_padding_does_not_count(variant: str) -> None:
    model = of(variant)
    features, boxes = (torch.full((3, 6, width), torch.nan) for width in (6, 4))
    for padded, values in ((features, FEATURES), (boxes, BOXES)):
        for image, length in enumerate(REGION_LENGTHS.tolist()):
            padded[image, :length] = values[image, :length]
    tokens = torch.full((3, 7), 10)
    tokens[:, :5] = torch.where(torch.arange(5) < LENGTHS[:, None], TOKENS, 10)
    with torch.no_grad():
        padded_images, padded_captions = encode(model, features, boxes=boxes, tokens=tokens)
        scores = model.score(padded_images, padded_captions)
        for item, (regions, words) in enumerate(zip(REGION_LENGTHS.tolist(), LENGTHS.tolist(), strict=True)):
            only = slice(item, item + 1)
            image = model.encode_images(FEATURES[only, :regions], boxes=BOXES[only, :regions])
            caption = model.encode_captions(TOKENS[only, :words], LENGTHS[only])
            torch.testing.assert_close(model.score(image, padded_captions), scores[only], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(model.score(padded_images, caption), scores[:, only], rtol=1e-5, atol=1e-6)
        terms, padded_terms = model.loss(*encode(model)), model.loss(padded_images, padded_captions)
    for name, term in terms.items():
        torch.testing.assert_close(padded_terms[name], term, rtol=1e-5, atol=1e-5)


@EVERY_MODEL
def test_of_a_long_caption_the_first_words_are_read(kind: str) -> None:
    model, cut = make(kind), make(kind, max_words=2)
    shorter = torch.stack([TOKENS[0, [0, 1, 2, 4]], TOKENS[1, :4], TOKENS[2, :4]])  # its last number, <end>, stays
    images, captions = encode(cut)
    _, expected = encode(model, tokens=shorter, lengths=torch.tensor([4, 1, 3]))
    assert torch.equal(captions.lengths, expected.lengths)
    assert torch.equal(captions.sequences, expected.sequences)
    torch.testing.assert_close(cut.score(images, captions), model.score(images, expected))
    same = encode(make(kind, max_words=3))[1]  # as long as the longest
    assert torch.equal(same.sequences, encode(model)[1].sequences)


@EVERY_VARIANT
def test_a_nan_region_is_its_image_s_alone(variant: str) -> None:
    model = of(variant)
    features = FEATURES.clone()
    features[1, 1, 2] = torch.nan
    with torch.no_grad():
        (images, captions), (expected, _) = encode(model, features), encode(model)
        for name, vectors in images.vectors.items():
            assert torch.equal(vectors[::2], expected.vectors[name][::2])
        for image in (0, 2):
            rows = slice(0, int(expected.lengths[image]))
            assert torch.equal(images.sequences[image, rows], expected.sequences[image, rows])
        scores, clean = model.score(images, captions), model.score(expected, captions)
        listed = model.score(images, captions, torch.tensor([[1, 0], [2, 0]]))
    assert scores[1].isnan().all()
    torch.testing.assert_close(scores[::2], clean[::2], rtol=1e-6, atol=1e-7)
    assert listed.isnan().tolist() == [True, False]


@EVERY_VARIANT
def test_a_nan_word_is_its_caption_s_alone(variant: str) -> None:
    model = of(variant)
    with torch.no_grad():
        model.text.embed.weight[10] = torch.nan
        tokens = TOKENS.masked_fill(TOKENS == 10, 3)
        clean = model.score(*encode(model, tokens=tokens))
        tokens[2, 1] = 10
        scores = model.score(*encode(model, tokens=tokens))
    assert scores[:, 2].isnan().all()
    torch.testing.assert_close(scores[:, :2], clean[:, :2], rtol=1e-6, atol=1e-7)


@EVERY_LOSS
def test_gradients_are_those_of_float64(variant: str) -> None:
    """Float32 against a copy in float64, and that against differences of the loss along random directions."""
    model = of(variant, margin=2.0)  # every hinge is active
    exact = double(model)
    for one in (model, exact):
        one.loss(*encode(one))["loss"].backward()
    largest = max(parameter.grad.abs().max().item() for parameter in exact.parameters())
    for (name, parameter), ours in zip(exact.named_parameters(), model.parameters(), strict=True):
        assert (ours.grad - parameter.grad).abs().max() < 2e-5 * largest, name
    if variant.startswith("laps"):  # of which what patches are chosen by gets no gradient
        return
    numbers = parameters_to_vector(exact.parameters()).detach()
    gradient = parameters_to_vector(parameter.grad for parameter in exact.parameters())
    generator, step = torch.Generator().manual_seed(3), 1e-6
    for _ in range(2):
        direction, losses = torch.randn(len(numbers), generator=generator, dtype=torch.float64), []
        for moved in (numbers + step * direction, numbers - step * direction):
            vector_to_parameters(moved, exact.parameters())
            losses.append(exact.loss(*encode(exact))["loss"].item())
        slope = (gradient @ direction).item()
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-7)


@EVERY_LOSS
def test_gradients_are_finite_for_zero_regions_and_one_word(variant: str) -> None:
    model = of(variant, margin=2.0)
    for name, parameter in model.named_parameters():
        if "bias" in name:  # as a new model has them: zero regions stay zero
            torch.nn.init.zeros_(parameter)
    features = FEATURES.clone()
    features[0], features[1, 0] = 0, 0
    terms = model.loss(*encode(model, features, lengths=torch.tensor([1, 1, 5])))
    terms["loss"].backward()
    assert all(term.isfinite() for term in terms.values())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("scan", {"negatives": "hardest"}), ("vse", {"negatives": "sum"}), ("han", {"negatives": "softmax", "p": 1.5})],
)
@pytest.mark.parametrize("ids", [None, [7, 7, 3]], ids=["images differ", "captions of one image"])
def test_the_loss_of_most_is_the_triplet_loss(kind: str, fields: dict[str, Any], ids: list[int] | None) -> None:
    """SCAN Eqs. 11 and 12, HAN Eqs. 2 to 4, VSE++'s: summed over the batch; captions of one image are no negatives."""
    model = make(kind, margin=0.6, **fields)
    images, captions = encode(model)
    terms = model.loss(images, captions, None if ids is None else torch.tensor(ids))
    expected = triplet_by_hand(model.score(images, captions).detach(), 0.6, **fields, ids=ids)
    assert expected > 0
    assert {name: term.item() for name, term in terms.items()} == pytest.approx({"loss": expected}, rel=1e-5)


@EVERY_MODEL
def test_frozen_words_are_trained_in_no_epoch(kind: str) -> None:
    model, frozen = make(kind), make(kind, freeze_words=True)
    names = {name for name, _ in model.named_parameters()}
    for epoch in (0, 100):
        assert {name for name in names if model.trains(name, epoch)} == names
        assert {name for name in names if frozen.trains(name, epoch)} == names - {"text.embed.weight"}


@pytest.mark.parametrize(
    ("kind", "term", "fields"), [("sman", "intra_pair", {}), ("oan", "negatives", {"intra_margin": 1.5})]
)
def test_terms_beside_a_mean_are_means(kind: str, term: str, fields: dict[str, Any]) -> None:
    summed, mean = make(kind, **fields), make(kind, loss="infonce", **fields)
    mean.load_state_dict(summed.state_dict(), strict=False)
    with torch.no_grad():
        sides = encode(summed)
        sum_of_batch = summed.loss(*sides)[term]
        assert sum_of_batch > 0
        torch.testing.assert_close(mean.loss(*sides)[term], sum_of_batch / len(sides[0]))


@EVERY_VARIANT
@torch.no_grad()
def test_models_and_encoded_items_are_saved_joined_and_converted(variant: str, tmp_path: Path) -> None:
    model = of(variant)
    sides = encode(model)
    expected = model.score(*sides)
    # Captions are encoded apart, so that their parts differ in their longest; images are of one data set.
    captions = Encoded.concat([model.encode_captions(TOKENS[part], LENGTHS[part]) for part in (slice(1), slice(1, 3))])
    images = Encoded.concat([sides[0][:2], sides[0][2:]])
    torch.testing.assert_close(model.score(images, captions), expected, rtol=1e-5, atol=1e-6)
    for number, side in enumerate(sides):
        side.save(tmp_path / str(number))
    assert torch.equal(model.score(*(Encoded.load(tmp_path / number) for number in "01")), expected)
    save_model(model, tmp_path / "model", VOCABULARY)
    again, _ = load_model(tmp_path / "model")
    assert torch.equal(again.score(*encode(again)), expected)
    exact = double(model).score(*(side.to(dtype=torch.float64) for side in sides))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(expected.double(), exact, rtol=1e-5, atol=1e-5)


# Whether images and captions differ from one encoding to the next in training.
@pytest.mark.parametrize(
    ("variant", "fields", "differ"),
    [
        ("sman", {"dropout": 0.3}, (True, True)),
        ("sman", {"dropout": 0.0}, (False, False)),
        ("han transformer", {}, (False, True)),
        ("mhsan", {"text_dropout": 0.0}, (True, True)),
        ("mhsan", {"dropout": 0.0}, (False, True)),
        ("mhsan", {"dropout": 0.0, "text_dropout": 0.0}, (False, False)),
        ("oan", {}, (False, False)),
        ("vse", {}, (False, False)),
    ],
)
def test_dropout_is_of_training_alone(variant: str, fields: dict[str, Any], differ: tuple[bool, bool]) -> None:
    model = of(variant, **fields)
    for training, expected in ((False, (False, False)), (True, differ)):
        model.train(training)
        sides = zip(encode(model), encode(model), strict=True)
        assert tuple(not torch.equal(one.sequences, other.sequences) for one, other in sides) == expected


@pytest.mark.parametrize(
    ("variant", "encoder"),
    [
        ("sman", WordEncoder(11, 5, 8, cell="lstm", normalize=False)),
        ("han", WordEncoder(11, 5, 8, normalize=False)),
        ("han transformer", TransformerEncoder(11, 5, 8, layers=1, heads=2, dropout=0.1, longest=512)),
        ("mhsan", SruEncoder(11, 5, 8, layers=2)),
        ("mhsan both ways", SruEncoder(11, 5, 8, layers=2, bidirectional=True)),
        ("oan", NgramEncoder(11, 5, 8)),
        ("oan lstm", WordEncoder(11, 5, 8, cell="lstm", normalize=False)),
        ("vse raw", WordEncoder(11, 5, 8, bidirectional=False, normalize=False, layers=2)),
    ],
)
def test_words_are_read_by_the_paper_s_encoder(variant: str, encoder: torch.nn.Module) -> None:
    model = of(variant)
    encoder.load_state_dict(model.text.state_dict())
    assert torch.equal(model.text(TOKENS, LENGTHS), encoder.eval()(TOKENS, LENGTHS))


@pytest.mark.parametrize(
    ("side", "arguments", "message"),
    [
        ("images", (FEATURES[:, :, :5],), r"features must have shape \(n, R, 6\), got \(3, 4, 5\)"),
        ("images", (FEATURES, REGION_LENGTHS[:2]), r"lengths must have shape \(3,\), one an image, got \(2,\)"),
        ("images", (FEATURES, torch.tensor([4, 5, 1])), r"lengths\[1\] must be in 1\.\.4, got 5"),
        ("images", (FEATURES, None, BOXES[:, :3]), r"boxes must have shape \(3, 4, 4\), got \(3, 3, 4\)"),
        ("captions", (TOKENS.float(), LENGTHS), "tokens must be int64"),
        ("captions", (TOKENS[0], LENGTHS), r"tokens must have shape \(n, W\)"),
        ("captions", (TOKENS + 11, LENGTHS), r"tokens\[0, 0\] is \d+, not in the vocabulary of 11 words"),
        ("captions", (TOKENS.index_fill(1, torch.tensor(2), -1), LENGTHS), r"tokens\[0, 2\] is -1, not in"),
        ("captions", (TOKENS, LENGTHS[:2]), r"lengths must have shape \(3,\), one a caption, got \(2,\)"),
        ("captions", (TOKENS, LENGTHS - 1), r"lengths\[1\] must be in 1\.\.5, got 0"),
    ],
)
def test_what_does_not_fit_is_an_error(side: str, arguments: tuple[Tensor | None, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(make("sman"), f"encode_{side}")(*arguments)
