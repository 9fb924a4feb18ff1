"""SMAN: scores and attention of single pairs from the paper's equations, in float64; spatial order; losses by loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.batch import BOXES, FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, cosine, double, encode, items, make
from tests.models.loss_loops import triplet_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")


def linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    return layer.weight @ x + layer.bias


def attend(step: Any, rows: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 5 and 6, 9 to 11, 13 and 14, 16 to 18: the attended row and the weights (L,)."""
    hidden = [torch.tanh(linear(step.key, row)) * torch.tanh(linear(step.query, query)) for row in rows]
    exponentials = [torch.exp(step.head.weight[0] @ h) for h in hidden]
    weights = torch.stack([e / sum(exponentials) for e in exponentials])
    return sum((weight * row for weight, row in zip(weights, rows, strict=True)), torch.zeros(())), weights


def pair_by_hand(
    model: Any, regions: Tensor, words: Tensor, order: list[int]
) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """The levels' cosines, which add up to d of Eq. 20, and the weights of regions and words in each step, in float64.

    Args:
        regions: (M, image_dim) as they came; ``order``: their spatial order.
        words: (L, D) encoded.
    """
    v, t = [torch.tanh(linear(model.image.project, regions.mean(0)))], [words.mean(0)]
    if model.config.location:
        states, _ = model.image.gru(regions[order])
        v[0] = v[0] + states.mean(0)
    attended, region_weights = attend(model.image_step, regions, v[0])
    v.append(torch.tanh(linear(model.image_project, attended)))
    attended, word_weights = attend(model.text_step, words, t[0])
    t.append(attended)
    weights = [[region_weights], [word_weights]]
    if model.config.levels == 3:
        gate, alpha = model.gate, model.config.alpha
        memory_v, memory_t = linear(gate.image_memory, v[0] + v[1]), linear(gate.text_memory, t[0] + t[1])
        attended, region_weights = attend(
            gate.image_step, regions, torch.sigmoid(alpha * memory_v + (1 - alpha) * memory_t)
        )
        v.append(torch.tanh(linear(gate.image_project, attended)))
        attended, word_weights = attend(gate.text_step, words, torch.sigmoid(alpha * memory_t + (1 - alpha) * memory_v))
        t.append(attended)
        weights[0].append(region_weights)
        weights[1].append(word_weights)
    return [float(cosine(a, b)) for a, b in zip(v, t, strict=True)], *weights


def order_by_hand(boxes: Tensor) -> list[int]:
    """Of (M, 4) boxes: from the top down by their centres, of one height from left to right."""
    return sorted(
        range(len(boxes)), key=lambda m: ((boxes[m, 1] + boxes[m, 3]).item(), (boxes[m, 0] + boxes[m, 2]).item())
    )


@pytest.mark.parametrize("boxes", [BOXES, None], ids=["boxes", "no boxes"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"alpha": 0.3}, {"alpha": 1.0}, {"location": False}, {"levels": 2}, {"levels": 2, "location": False}],
    ids=str,
)
def test_scores_are_the_paper_s(fields: dict[str, Any], boxes: Tensor | None) -> None:
    model = double(make("sman", **fields))
    with torch.no_grad():
        images, captions = encode(model, boxes=boxes)
        scores = model.score(images, captions)
        (attention,), (part,) = model.attention(images, captions), model.contributions(images, captions).parts
        for image, regions in enumerate(items(FEATURES, REGION_LENGTHS)):
            order = list(range(len(regions))) if boxes is None else order_by_hand(boxes[image, : len(regions)])
            for caption, words in enumerate(items(model.text(TOKENS, LENGTHS), LENGTHS)):
                cosines, region_weights, word_weights = pair_by_hand(model, regions, words, order)
                assert scores[image, caption].item() == pytest.approx(sum(cosines), rel=1e-10)
                if image == caption:
                    ours = attention.weights[image, :, : len(regions)], attention.word_weights[image, :, : len(words)]
                    torch.testing.assert_close(ours[0], torch.stack(region_weights))
                    torch.testing.assert_close(ours[1], torch.stack(word_weights))
                    assert part.values[image].tolist() == pytest.approx(cosines, rel=1e-9)


def test_a_model_trained_by_boxes_needs_them_and_another_does_not_read_them() -> None:
    by_boxes, as_they_come, either = (make("sman", spatial_order=order) for order in (True, False, None))
    with torch.no_grad():
        ordered, given = (either.encode_images(FEATURES, boxes=boxes) for boxes in (BOXES, None))
        torch.testing.assert_close(by_boxes.encode_images(FEATURES, boxes=BOXES).vectors, ordered.vectors)
        torch.testing.assert_close(as_they_come.encode_images(FEATURES, boxes=BOXES).vectors, given.vectors)
        assert not torch.allclose(ordered.vectors["contexts"], given.vectors["contexts"])
        with pytest.raises(ValueError, match=r"^boxes are needed: this model reads regions in the order of"):
            by_boxes.encode_images(FEATURES)
        make("sman", spatial_order=True, location=False).encode_images(FEATURES)


@pytest.mark.parametrize(
    ("levels", "weight", "negatives", "ids"),
    [(2, 0.7, "hardest", [7, 7, 3]), (3, 0.7, "sum", None), (3, 0.0, "hardest", None)],
)
def test_loss_is_equations_21_to_23(levels: int, weight: float, negatives: str, ids: list[int] | None) -> None:
    weights = {"intra_pair_margin": 0.7, "intra_pair_weight": weight}
    model = make("sman", levels=levels, negatives=negatives, margin=1.2, **weights)
    images, captions = encode(model)
    scores = model.score(images, captions).detach()
    terms = model.loss(images, captions, None if ids is None else torch.tensor(ids))
    distances = [1 - scores[i, i].item() / levels for i in range(3)]
    assert min(distances) < 0.7 < max(distances)
    triplet = triplet_by_hand(scores, 1.2, negatives, ids=ids)
    intra_pair = sum(2 * max(0.0, distance - 0.7) for distance in distances)
    assert triplet > 0
    expected = {"loss": triplet + weight * intra_pair, "triplet": triplet, "intra_pair": intra_pair}
    if not weight:
        expected = {"loss": triplet}
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-5)
