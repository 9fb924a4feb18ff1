"""OAN: scores and attention of single pairs from the paper's equations, in float64; losses by loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.batch import FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, cosine, double, encode, items, make
from tests.models.loss_loops import triplet_by_hand, within_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")
SWITCHES: list[dict[str, Any]] = [
    {},
    {"inter_attention": False},
    {"intra_attention": False},
    {"inter_attention": False, "intra_attention": False},
]


def inter_by_hand(queries: Tensor, contexts: Tensor, temperature: float) -> tuple[float, Tensor, Tensor]:
    """Equations 4 and 5 of unit vectors, and S: the score, the weights (Q, C) and the cosines (Q,)."""
    queries, contexts = (rows / rows.norm(dim=1, keepdim=True) for rows in (queries, contexts))
    similarity = (queries @ contexts.T).clamp(min=0)
    normalized = torch.stack([column / (column.norm() + 1e-8) for column in similarity.T], 1)
    weights = torch.stack([torch.exp(temperature * row) / torch.exp(temperature * row).sum() for row in normalized])
    attended = weights @ contexts
    cosines = torch.stack([cosine(query, other) for query, other in zip(queries, attended, strict=True)])
    return float(cosines.mean()), weights, cosines


def heads_by_hand(model: Any, name: str, objects: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 6 to 8 of (L, D): what the heads attend to (K, D) and their weights (K, L)."""
    context = objects.mean(0)
    if not model.config.intra_attention:
        return context[None], torch.empty(0)
    module, (length, dim) = getattr(model, name), objects.shape
    weights = []
    for head in range(model.config.heads):
        rows = slice(head * dim, (head + 1) * dim)
        guide = torch.tanh(module.context.weight[rows] @ context)
        logits = [guide @ torch.tanh(module.objects.weight[rows] @ objects[i]) for i in range(length)]
        weights.append(torch.softmax(model.config.lambda_intra * torch.stack(logits), 0))
    return torch.stack(weights) @ objects, torch.stack(weights)


def set_cosine(a: Tensor, b: Tensor) -> float:
    """S(a, b) of Section 4.4."""
    return sum(float(cosine(x, y)) for x, y in zip(a, b, strict=True)) / len(a)


def sides_by_hand(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The objects of each image (M, D), Eq. 3, and of each caption (N, D)."""
    images = [
        torch.tanh(rows @ model.image.fc.weight.T + model.image.fc.bias) for rows in items(FEATURES, REGION_LENGTHS)
    ]
    return images, items(model.text(TOKENS, LENGTHS), LENGTHS)


def parts_by_hand(model: Any) -> dict[str, tuple[float, Tensor]]:
    """Each term of Eq. 14 with its weight, (n_images, n_captions)."""
    config = model.config
    images, captions = sides_by_hand(model)
    parts: dict[str, tuple[float, Tensor]] = {}
    if config.inter_attention:
        weight = 1 - config.gamma if config.intra_attention else 1.0
        for name, temperature in (("t2i", config.lambda_tv), ("i2t", config.lambda_vt)):
            scores = [
                [inter_by_hand(*((t, v) if name == "t2i" else (v, t)), temperature)[0] for t in captions]
                for v in images
            ]
            parts[name] = weight, torch.tensor(scores, dtype=torch.float64)
    if config.intra_attention or not config.inter_attention:
        weight = config.gamma if config.intra_attention and config.inter_attention else 1.0
        parts["heads"] = weight, cosines_by_hand(heads_of(model, images, "image"), heads_of(model, captions, "text"))
    return parts


def heads_of(model: Any, side: list[Tensor], name: str) -> list[Tensor]:
    return [heads_by_hand(model, f"{name}_heads", objects)[0] for objects in side]


def cosines_by_hand(some: list[Tensor], others: list[Tensor]) -> Tensor:
    return torch.tensor([[set_cosine(a, b) for b in others] for a in some], dtype=torch.float64)


@pytest.mark.parametrize(
    "fields",
    [*SWITCHES, {"text_encoder": "lstm"}, {"heads": 1, "lambda_intra": 3.0}, {"lambda_tv": 6.0, "gamma": 0.8}],
    ids=str,
)
def test_scores_are_the_paper_s(fields: dict[str, Any]) -> None:
    model = double(make("oan", **fields))
    with torch.no_grad():
        scores = model.score(*encode(model))
        expected = sum(weight * part for weight, part in parts_by_hand(model).values())
    torch.testing.assert_close(scores, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("switches", SWITCHES[:3], ids=str)
def test_attention_and_shares_are_those_of_the_scores(switches: dict[str, Any]) -> None:
    """Eq. 14: of words and regions the cosines' means, of heads the mean of cosines, as they are weighted."""
    model = double(make("oan", **switches))
    with torch.no_grad():
        sides, weights = encode(model), {name: weight for name, (weight, _) in parts_by_hand(model).items()}
        maps = {attention.name: attention for attention in model.attention(*sides)}
        shares = {part.name: part for part in model.contributions(*sides).parts}
        assert maps.keys() == shares.keys() == weights.keys()
        for item, (v, t) in enumerate(zip(*sides_by_hand(model), strict=True)):
            part, cosines = (item, slice(0, len(t)), slice(0, len(v))), {}
            if model.config.inter_attention:
                _, expected, cosines["t2i"] = inter_by_hand(t, v, model.config.lambda_tv)
                close(maps["t2i"].weights[part], expected)
                close(maps["t2i"].relevances[item, : len(t)], cosines["t2i"])
                _, expected, cosines["i2t"] = inter_by_hand(v, t, model.config.lambda_vt)
                close(maps["i2t"].weights[part], expected.T)
                close(maps["i2t"].relevances[item, : len(t)], cosines["i2t"][expected.argmax(0)])
            if model.config.intra_attention:
                (image, weights_v), (text, weights_t) = (
                    heads_by_hand(model, f"{name}_heads", side) for name, side in (("image", v), ("text", t))
                )
                close(maps["heads"].weights[item, :, : len(v)], weights_v)
                close(maps["heads"].word_weights[item, :, : len(t)], weights_t)
                cosines["heads"] = torch.stack([cosine(*pair) for pair in zip(image, text, strict=True)])
            for name, of_name in cosines.items():
                own, count = shares[name].values[item], len(of_name)
                close(own[:count], weights[name] / count * of_name)
                close(shares[name].relevances[item, :count], of_name)
                assert not own[count:].any()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("switches", "kind", "negatives", "ids"),
    [
        (SWITCHES[0], "own", "hardest", None),
        (SWITCHES[1], "partner", "sum", [7, 7, 3]),
        (SWITCHES[2], "partner", "hardest", [7, 7, 3]),
        (SWITCHES[3], "none", "sum", None),
    ],
)
def test_loss_is_equation_13(switches: dict[str, Any], kind: str, negatives: str, ids: list[int] | None) -> None:
    model = double(
        make(
            "oan", **switches, intra_negatives=kind, negatives=negatives, margin=0.6, intra_margin=1.5, intra_weight=0.7
        )
    )
    with torch.no_grad():
        terms = model.loss(*encode(model), None if ids is None else torch.tensor(ids))
        expected = {}
        images, captions = sides_by_hand(model)
        for name, (weight, scores) in parts_by_hand(model).items():
            expected[name] = weight * triplet_by_hand(scores, 0.6, negatives, ids=ids)
            if name == "heads":
                v, t = heads_of(model, images, "image"), heads_of(model, captions, "text")
                within = 0.0
                if kind != "none":
                    within = within_by_hand(scores, cosines_by_hand(v, v), cosines_by_hand(t, t), 1.5, kind, ids)
                    assert within > 0
                expected["negatives"] = weight * 0.7 * within
    expected["loss"] = sum(expected.values())
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-6)
