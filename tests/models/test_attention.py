"""Every variant: its attention, and the shares that its words and regions have in a score."""

from __future__ import annotations

import pytest
import torch

from tests.models.batch import EVERY_VARIANT, LENGTHS, REGION_LENGTHS, SCORED, encode, of

pytestmark = pytest.mark.usefixtures("one_thread")
# Name and queries of each map.
MAPS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "t2i": ("t2i", None),
    "i2t": ("i2t", None),
    "heads": ("heads", ("head 1", "head 2", "head 3")),
    "one-step": ("steps", ("step 1: intra-modal",)),
    "two-steps": ("steps", ("step 1: intra-modal", "step 2: multi-modal")),
}


@EVERY_VARIANT
def test_attention_is_over_the_valid(variant: str) -> None:
    model = of(variant)
    images, captions = encode(model)
    maps = model.attention(images, captions)
    expected = [MAPS[name] for name in SCORED[variant][2].split()]
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
