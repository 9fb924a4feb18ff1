"""HAN: scores and attention of single pairs from the paper's equations, in float64; clusters; loss by loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.batch import FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, cosine, double, encode, items, make

pytestmark = pytest.mark.usefixtures("one_thread")
TRANSFORMER = {"text_encoder": "transformer", "transformer_layers": 2, "transformer_heads": 2}


def layer_by_hand(layer: Any, h: Tensor, heads: int, temperature: float) -> Tensor:
    """Lines 9 to 18 of Algorithm 1, of the rows (m + n, D) of a pair; the heads split D, and q is what is added."""
    q, k, v = (rows @ part.weight.T + part.bias for part in (layer.query, layer.key, layer.value) for rows in (h,))
    size = h.shape[1] // heads
    rows = []
    for i in range(len(h)):
        outputs = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            exponentials = torch.stack([torch.exp(temperature * (q[i, part] @ k[j, part])) for j in range(len(h))])
            outputs.append(exponentials / exponentials.sum() @ v[:, part])
        row = layer.output.weight @ torch.cat(outputs) + layer.output.bias + q[i]
        centred = row - row.mean()
        rows.append(centred / (centred.square().mean() + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias)
    return torch.stack(rows)


def pair_by_hand(model: Any, regions: Tensor, words: Tensor) -> tuple[float, Tensor, Tensor]:
    """Algorithm 1 with the mean of Eq. 1: the score, and the matching's weights (Q, C) and relevances (Q,).

    Args:
        regions: (m, image_dim) features; words: (n, D) encoded.
    """
    config = model.config
    regions = regions @ model.image.fc.weight.T + model.image.fc.bias
    if config.matching == "global":
        regions, words = torch.cat([model.image_token[None], regions]), torch.cat([model.text_token[None], words])
    h = torch.stack([row / row.norm() for row in (*regions, *words)])
    for layer in model.layers:
        h = layer_by_hand(layer, h, config.heads, config.lambda_attention)
    regions, words = h[: len(regions)], h[len(regions) :]
    if config.matching == "global":
        return float(cosine(regions[0], words[0])), torch.empty(0), torch.empty(0)
    queries, contexts = (words, regions) if config.direction == "t2i" else (regions, words)
    weights, relevances = [], []
    for query in queries:
        logits = torch.stack([config.lambda_softmax * cosine(query, context) for context in contexts])
        weights.append(torch.softmax(logits, 0))
        attended = sum(w * c / c.norm() for w, c in zip(weights[-1], contexts, strict=True))
        relevances.append(cosine(query, attended))
    return float(sum(relevances)) / len(relevances), torch.stack(weights), torch.stack(relevances)


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"layers": 0}, {"layers": 2, "heads": 4}, {"direction": "i2t"}, {"matching": "global"},
        {"lambda_attention": 0.5, "lambda_softmax": 4.0}, TRANSFORMER,
    ],
    ids=str,
)  # fmt: skip
def test_scores_are_the_paper_s(fields: dict[str, Any]) -> None:
    model = double(make("han", **fields))
    with torch.no_grad():
        images, captions = encode(model)
        scores = model.score(images, captions)
        maps, shares = model.attention(images, captions), model.contributions(images, captions)
        for image, regions in enumerate(items(FEATURES, REGION_LENGTHS)):
            for caption, words in enumerate(items(model.text(TOKENS, LENGTHS), LENGTHS)):
                score, weights, relevances = pair_by_hand(model, regions, words)
                assert scores[image, caption].item() == pytest.approx(score, rel=1e-9)
                if image != caption or not maps:
                    continue
                own = shares.parts[0].values[image]
                torch.testing.assert_close(own[: len(relevances)], relevances / len(relevances))
                assert not own[len(relevances) :].any()
                if model.config.direction == "i2t":
                    weights, relevances = weights.T, relevances[weights.argmax(0)]
                part = image, slice(0, len(words)), slice(0, len(regions))
                torch.testing.assert_close(maps[0].weights[part], weights)
                torch.testing.assert_close(maps[0].relevances[image, : len(words)], relevances)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_centres_stand_for_their_regions(direction: str) -> None:
    """Two groups of regions an image, far from each other: the score is that of their means."""
    model = double(make("han", clusters=2, direction=direction))
    groups = [[0, 1, 0, 1], [1, 0], [1, 1, 0]]
    features = 0.1 * FEATURES
    features += torch.tensor([groups[0], groups[1] + [0, 0], groups[2] + [0]])[:, :, None] * torch.linspace(-3, 4, 6)
    with torch.no_grad():
        images, captions = encode(model, features)
        scores = model.score(images, captions)
        (attention,), (part,) = model.attention(images, captions), model.contributions(images, captions).parts
        for image, regions in enumerate(items(features, REGION_LENGTHS)):
            of_group = [[r for r, group in enumerate(groups[image]) if group == number] for number in (0, 1)]
            centres = torch.stack([regions[members].mean(0) for members in of_group])
            for caption, words in enumerate(items(model.text(TOKENS, LENGTHS), LENGTHS)):
                score, weights, relevances = pair_by_hand(model, centres, words)
                assert scores[image, caption].item() == pytest.approx(score, rel=1e-6)
                if image == caption:
                    of_centres = weights if direction == "t2i" else weights.T
                    ours = attention.weights[image, : len(words), : len(regions)]
                    torch.testing.assert_close(ours, of_centres[:, groups[image]], rtol=1e-5, atol=1e-6)
                    if direction == "i2t":
                        alike = [relevances[group] / 2 / len(of_group[group]) for group in groups[image]]
                        torch.testing.assert_close(part.values[image, : len(regions)], torch.stack(alike))
                        assert not part.values[image, len(regions) :].any()
