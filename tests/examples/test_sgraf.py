"""SGRAF's example: its scores against the formulas pair by pair, and its training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from crossret_kernels import triplet_loss
from examples import sgraf

pytestmark = pytest.mark.usefixtures("one_thread")
DIM, REGIONS, WORDS = 6, 5, 4
LENGTHS = torch.tensor([4, 1, 3])


def one_pair(model: sgraf.Similarity, image: sgraf.Items, caption: sgraf.Items, i: int, c: int) -> Tensor:
    """Score of one image and one caption by the equations of the paper's sections 3.2 to 3.4."""
    v, e = image.rows[i], caption.rows[c][caption.mask[c]]
    s = F.leaky_relu(v @ e.T, 0.1)
    weights = torch.softmax(9 * (s / (s.norm(dim=1, keepdim=True) + 1e-8)).T, 1)
    attended = F.normalize(weights @ v, dim=-1)
    nodes = [F.normalize(model.whole((image.whole[i] - caption.whole[c]).square()), dim=-1)]
    nodes += [F.normalize(model.local((a - word).square()), dim=-1) for a, word in zip(attended, e, strict=True)]
    graph = torch.stack(nodes)
    reasoning = model.reasoning
    if isinstance(reasoning, sgraf.AttentionFiltration):
        gates = torch.sigmoid(reasoning.gate(graph))
        return torch.sigmoid(model.last(F.normalize((gates / gates.sum() * graph).sum(0), dim=-1)))[0]
    for query, key, layer in zip(reasoning.queries, reasoning.keys, reasoning.layers, strict=True):
        edges = torch.softmax(query(graph) @ key(graph).T, -1)
        graph = torch.relu(layer(edges @ graph))
    return torch.sigmoid(model.last(graph[0]))[0]


@pytest.mark.parametrize("filtration", [False, True], ids=["SGR", "SAF"])
def test_scores_and_gradients_are_those_of_the_formulas(filtration: bool) -> None:
    torch.manual_seed(2)
    model = sgraf.Similarity(DIM, REGIONS, 8, filtration).double().eval()
    regions, words = (F.normalize(torch.randn(n, k, DIM).double(), dim=-1) for n, k in ((2, REGIONS), (3, WORDS)))
    sides = [side.requires_grad_() for side in (regions, words)]
    items = model.items(*sides, LENGTHS)
    scores = model(*items)
    expected = torch.stack([torch.stack([one_pair(model, *items, i, c) for c in range(3)]) for i in range(2)])
    torch.testing.assert_close(scores, expected, rtol=1e-8, atol=1e-10)
    weights = torch.randn(2, 3).double()
    wanted = [*sides, *model.parameters()]
    ours, theirs = (torch.autograd.grad(x, wanted, weights, retain_graph=True) for x in (scores, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_gradients_of_pairs_that_have_one_are_those_of_all() -> None:
    torch.manual_seed(3)
    model = sgraf.Similarity(DIM, REGIONS, 8).double().eval()
    regions, words = (F.normalize(torch.randn(3, k, DIM).double(), dim=-1) for k in (REGIONS, WORDS))
    found = []
    for of_all in (True, False):
        model.zero_grad()
        items = model.items(regions, words, LENGTHS)
        if of_all:
            triplet_loss(model(*items)).backward()
        else:
            sgraf.backward(model, *items, triplet_loss)
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(found[0]) == len(list(model.parameters()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("filtration", [False, True], ids=["SGR", "SAF"])
def test_it_trains(filtration: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 <= sgraf.main(train_scenes=20, epochs=2, filtration=filtration, dim=16) <= 100
    assert capsys.readouterr().out.count("loss") == 2
