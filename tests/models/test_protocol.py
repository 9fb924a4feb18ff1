"""Every model and variant: pairs, padding, NaN, gradients, files, precision, attention, dropout, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.data.vocabulary import Vocabulary
from crossret.encoders import NgramEncoder, SruEncoder, TransformerEncoder, WordEncoder
from crossret.models import MODELS
from crossret.models.checkpoints import load_model, save_model
from crossret.models.encoded import Encoded
from tests.models.batch import BOXES, FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, double, encode, make
from tests.models.loss_loops import triplet_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")

_TRANSFORMER = {"text_encoder": "transformer", "transformer_layers": 1, "transformer_heads": 2}
# Of each variant its kind, hyper-parameters and attention maps.
_VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "scan": ("scan", {"cross_attention": "ensemble"}, "t2i i2t"),
    "scan t2i": ("scan", {"cross_attention": "t2i"}, "t2i"),
    "scan i2t": ("scan", {"cross_attention": "i2t"}, "i2t"),
    "scan sum_max_t2i": ("scan", {"cross_attention": "sum_max_t2i"}, "t2i"),
    "scan sum_max_i2t": ("scan", {"cross_attention": "sum_max_i2t"}, "i2t"),
    "sman": ("sman", {}, "two-steps"),
    "sman levels": ("sman", {"levels": 2}, "one-step"),
    "sman im": ("sman", {"levels": 2, "location": False, "intra_pair_weight": 0.0}, "one-step"),
    "sman sim": ("sman", {"alpha": 1.0}, "two-steps"),
    "han": ("han", {}, "t2i"),
    "han 0": ("han", {"layers": 0}, "t2i"),
    "han i2t": ("han", {"direction": "i2t"}, "i2t"),
    "han global": ("han", {"matching": "global"}, ""),
    "han clusters": ("han", {"clusters": 2}, "t2i"),
    "han transformer": ("han", _TRANSFORMER, "t2i"),
    "mhsan": ("mhsan", {}, "heads"),
    "mhsan both ways": ("mhsan", {"bidirectional": True, "diversity_squared": True}, "heads"),
    "oan": ("oan", {}, "t2i i2t heads"),
    "oan no inter": ("oan", {"inter_attention": False}, "heads"),
    "oan no intra": ("oan", {"intra_attention": False}, "t2i i2t"),
    "oan no attention": ("oan", {"inter_attention": False, "intra_attention": False}, ""),
    "oan lstm": ("oan", {"text_encoder": "lstm"}, "t2i i2t heads"),
    "vse": ("vse", {}, ""),
    "vse raw": ("vse", {"image_norm": False, "text_layers": 2, "negatives": "sum"}, ""),
    "vse order": ("vse", {"measure": "order", "use_abs": True}, ""),
    "laps": ("laps", {}, "t2i i2t"),
    "laps global": ("laps", {"global_token": True, "keep_ratio": 0.3}, "t2i i2t"),
}
# Name and queries of each map.
MAPS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "t2i": ("t2i", None),
    "i2t": ("i2t", None),
    "heads": ("heads", ("head 1", "head 2", "head 3")),
    "one-step": ("steps", ("step 1: intra-modal",)),
    "two-steps": ("steps", ("step 1: intra-modal", "step 2: multi-modal")),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (kind, fields) for name, (kind, fields, _) in _VARIANTS.items()},
    "scan infonce": ("scan", {"loss": "infonce"}),
    "mhsan sigmoid": ("mhsan", {"loss": "sigmoid"}),
    "oan infonce": ("oan", {"loss": "infonce"}),
}
EVERY_VARIANT = pytest.mark.parametrize("variant", _VARIANTS)
EVERY_LOSS = pytest.mark.parametrize("variant", VARIANTS)
EVERY_MODEL = pytest.mark.parametrize("kind", MODELS)
VOCABULARY = Vocabulary(["a", "black", "dog", "on", "the", "red", "mat"])


def of(variant: str, **fields: Any) -> Any:
    kind, changed = VARIANTS[variant]
    return make(kind, **{**changed, **fields})


def scores_of(model: Any, *sides: Encoded) -> Tensor:
    with torch.no_grad():
        scores: Tensor = model.score(*sides)
    return scores


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
    with torch.no_grad():
        images, captions = encode(cut)
        _, expected = encode(model, tokens=shorter, lengths=torch.tensor([4, 1, 3]))
    assert torch.equal(captions.lengths, expected.lengths)
    assert torch.equal(captions.sequences, expected.sequences)
    torch.testing.assert_close(scores_of(cut, images, captions), scores_of(model, images, expected))
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
    generator, step = torch.Generator().manual_seed(3), 1e-6
    for _ in range(2):
        slope, losses = 0.0, []
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in exact.parameters()]
        with torch.no_grad():
            for move in (step, -2 * step):
                for parameter, direction in zip(exact.parameters(), directions, strict=True):
                    parameter += move * direction
                losses.append(exact.loss(*encode(exact))["loss"].item())
            for parameter, direction in zip(exact.parameters(), directions, strict=True):
                parameter += step * direction
                slope += (parameter.grad * direction).sum().item()
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


@EVERY_VARIANT
def test_models_and_encoded_items_are_saved_joined_and_converted(variant: str, tmp_path: Path) -> None:
    model = of(variant)
    with torch.no_grad():
        sides = encode(model)
        # Captions are encoded apart, so that their parts differ in their longest; images are of one data set.
        parts = [model.encode_captions(TOKENS[part], LENGTHS[part]) for part in (slice(0, 1), slice(1, 3))]
        images = Encoded.concat([sides[0][:2], sides[0][2:]])
        save_model(model, tmp_path / "model", VOCABULARY)
        again, _ = load_model(tmp_path / "model")
        of_loaded = encode(again)
    expected = scores_of(model, *sides)
    torch.testing.assert_close(scores_of(model, images, Encoded.concat(parts)), expected, rtol=1e-5, atol=1e-6)
    loaded = []
    for number, side in enumerate(sides):
        side.save(tmp_path / str(number))
        loaded.append(Encoded.load(tmp_path / str(number)))
    assert torch.equal(scores_of(model, *loaded), expected)
    assert again.config == model.config
    assert torch.equal(scores_of(again, *of_loaded), expected)
    exact = scores_of(double(model), *(side.to(dtype=torch.float64) for side in sides))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(expected.double(), exact, rtol=1e-5, atol=1e-5)


@EVERY_VARIANT
def test_attention_is_over_the_valid(variant: str) -> None:
    model = of(variant)
    images, captions = encode(model)
    maps = model.attention(images, captions)
    expected = [MAPS[name] for name in _VARIANTS[variant][2].split()]
    assert [(attention.name, attention.queries) for attention in maps] == expected
    words, regions = (torch.arange(width) < lengths[:, None] for width, lengths in ((5, LENGTHS), (4, REGION_LENGTHS)))
    for attention in maps:
        queries = words if attention.queries is None else torch.ones(3, len(attention.queries), dtype=torch.bool)
        assert attention.weights.shape == (*queries.shape, 4)
        valid = queries[:, :, None] & regions[:, None, :]
        assert not attention.weights.requires_grad
        assert (attention.weights >= 0).all()
        assert not attention.weights[~valid].any()
        if attention.name == "i2t":
            sums, summed = attention.weights.sum(1), regions
        else:
            sums, summed = attention.weights.sum(2), queries
        if variant != "han clusters":  # whose regions each have all of their centre's
            torch.testing.assert_close(sums, summed.float())
        if attention.queries is None:
            assert attention.word_weights is None
            assert attention.relevances.shape == queries.shape
            assert not attention.relevances[~queries].any()
            continue
        assert attention.relevances is None
        assert attention.word_weights.shape == (*queries.shape, 5)
        assert not attention.word_weights.masked_select(~words[:, None, :]).any()
        torch.testing.assert_close(attention.word_weights.sum(2), torch.ones(queries.shape))


@EVERY_VARIANT
def test_shares_add_up_to_the_score(variant: str) -> None:
    """Bit for bit; they are there of all but one vector a side, none is at the padding, and names are the maps'."""
    model, generator = of(variant), torch.Generator().manual_seed(2)
    names = {attention.name: attention.queries for attention in model.attention(*encode(model))}
    for _ in range(5):
        features = torch.randn(3, 4, 6, generator=generator)
        lengths = [torch.randint(1, most + 1, (3,), generator=generator) for most in (4, 5)]
        images, captions = encode(model, features, lengths[0], lengths=lengths[1])
        shares = model.contributions(images, captions)
        if variant in ("han global", "oan no attention") or variant.startswith(("mhsan", "vse")):
            assert shares is None
            continue
        assert torch.equal(shares.scores, model.score(images, captions, torch.arange(3)[:, None].expand(3, 2)))
        values = torch.cat([part.values for part in shares.parts], 1)
        assert not values.requires_grad
        assert torch.equal(values.sum(1).float(), shares.scores)
        for part in shares.parts:
            assert part.relevances.shape == part.values.shape
            if part.names is None:
                count = lengths[part.items == "words"]
                assert not part.values[torch.arange(part.values.shape[1]) >= count[:, None]].any()
            else:
                assert part.values.shape[1] == len(part.names)
                assert set(names[part.name]) <= set(part.names)


@pytest.mark.parametrize("variant", ["scan", "scan sum_max_t2i", "sman", "han", "mhsan", "oan"])
def test_attention_and_shares_take_pairs(variant: str) -> None:
    model = of(variant)
    images, captions = encode(model)
    for of_pairs in (model.attention, model.contributions) if variant != "mhsan" else (model.attention,):
        with pytest.raises(ValueError, match="must be pairs, got 3 images and 2 captions"):
            of_pairs(images, captions[:2])


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
    ("kind", "features", "lengths", "boxes", "message"),
    [
        ("scan", FEATURES[:, :, :5], REGION_LENGTHS, None, r"features must have shape \(n, R, 6\), got \(3, 4, 5\)"),
        ("scan", FEATURES, REGION_LENGTHS[:2], None, r"lengths must have shape \(3,\), one an image, got \(2,\)"),
        ("han", FEATURES, torch.tensor([4, 5, 1]), None, r"lengths\[1\] must be in 1\.\.4, got 5"),
        ("sman", FEATURES, REGION_LENGTHS, BOXES[:, :3], r"boxes must have shape \(3, 4, 4\), got \(3, 3, 4\)"),
    ],
)
def test_images_that_do_not_fit_are_errors(
    kind: str, features: Tensor, lengths: Tensor, boxes: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(kind).encode_images(features, lengths, boxes)


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (TOKENS.float(), LENGTHS, "tokens must be int64"),
        (TOKENS[0], LENGTHS, r"tokens must have shape \(n, W\)"),
        (TOKENS + 11, LENGTHS, r"tokens\[0, 0\] is \d+, not in the vocabulary of 11 words"),
        (TOKENS.index_fill(1, torch.tensor(2), -1), LENGTHS, r"tokens\[0, 2\] is -1, not in"),
        (TOKENS, LENGTHS[:2], r"lengths must have shape \(3,\), one a caption, got \(2,\)"),
        (TOKENS, LENGTHS - 1, r"lengths\[1\] must be in 1\.\.5, got 0"),
    ],
)
def test_captions_that_do_not_fit_are_errors(tokens: Tensor, lengths: Tensor, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make("scan").encode_captions(tokens, lengths)


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
