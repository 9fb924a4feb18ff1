"""Weights of rows in Sum-Max: what each maximum counts for, in every layout, with gradients of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores
from crossret_kernels.late_interaction import maxsim, maxsim_pairs
from tests.kernels.strategies import Features

LENGTHS = torch.tensor([5, 1, 3]), torch.tensor([4, 2, 1, 4])
GENERATOR = torch.Generator().manual_seed(2)
REGIONS, WORDS = (torch.randn(*shape, 8, generator=GENERATOR).double() for shape in ((3, 5), (4, 4)))
OF_REGIONS, OF_WORDS = (torch.rand(shape, generator=GENERATOR).double() for shape in ((3, 5), (4, 4)))
POOLINGS: tuple[dict[str, Any], ...] = ({"pooling": "sum"}, {"pooling": "avg", "clip_slope": 0.1}, {"pooling": "max"})


def expected(direction: str, normalize: bool, pooling: str, clip_slope: float = 1.0) -> Tensor:
    """Pair by pair: weight times maximum, pooled."""
    made = torch.empty(3, 4, dtype=torch.float64)
    for i, n in enumerate(LENGTHS[0].tolist()):
        for c, m in enumerate(LENGTHS[1].tolist()):
            v, e = REGIONS[i, :n], WORDS[c, :m]
            if normalize:
                v, e = (side / side.norm(dim=1, keepdim=True) for side in (v, e))
            s = torch.nn.functional.leaky_relu(v @ e.T, clip_slope)
            ways = {"t2i": s.amax(0) * OF_WORDS[c, :m], "i2t": s.amax(1) * OF_REGIONS[i, :n]}
            pooled = {"sum": Tensor.sum, "avg": Tensor.mean, "max": Tensor.amax}[pooling]
            of_each = [pooled(ways[way]) for way in (("t2i", "i2t") if direction == "both" else (direction,))]
            made[i, c] = sum(of_each) / len(of_each)
    return made


@pytest.mark.parametrize("pooling", POOLINGS, ids=lambda options: options["pooling"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
@pytest.mark.parametrize("layout", ["padded", "packed", "list"])
def test_weights_multiply_maxima(layout: str, direction: str, normalize: bool, pooling: dict[str, Any]) -> None:
    batch = Features(REGIONS, WORDS, *LENGTHS, None)
    weights = {"region_weights": OF_REGIONS, "word_weights": OF_WORDS}
    for name, lengths in zip(weights, LENGTHS, strict=True):
        own = [row[:n] for row, n in zip(weights[name], lengths.tolist(), strict=True)]
        weights[name] = {"padded": weights[name], "packed": torch.cat(own), "list": own}[layout]
    unused = {"t2i": "region_weights", "i2t": "word_weights"}.get(direction, "")
    weights.pop(unused, None)
    options: dict[str, Any] = {"direction": direction, "normalize": normalize, **pooling, **weights}
    scores = maxsim_scores(*batch.arguments(layout), **options)
    torch.testing.assert_close(scores, expected(direction, normalize, **pooling))
    if layout == "padded":  # by kernels, too
        narrow = {name: x.float() if isinstance(x, Tensor) else x for name, x in options.items()}
        found = maxsim_scores(*batch.to(torch.float32).arguments(), backend="cpu", **narrow)
        torch.testing.assert_close(found.double(), scores, rtol=1e-5, atol=1e-5)


def test_weights_have_gradients() -> None:
    """DRL makes them of the rows (Wang et al., 2022): each gets its maximum times the score's gradient."""
    weights = OF_WORDS.float().requires_grad_()
    scores = maxsim_scores(REGIONS.float(), WORDS.float(), None, LENGTHS[1], word_weights=weights)
    (gradient,) = torch.autograd.grad(scores.sum(), weights)
    maxima = torch.einsum("ird,cwd->icrw", REGIONS, WORDS).amax(2).sum(0).float()
    there = torch.arange(4) < LENGTHS[1][:, None]
    torch.testing.assert_close(gradient, maxima.masked_fill(~there, 0))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_padding_reaches_no_gradient(backend: str, normalize: bool) -> None:
    there = torch.arange(4) < LENGTHS[1][:, None]
    words, weights = WORDS.float().clone(), OF_WORDS.float().clone()
    words[~there], weights[~there] = torch.nan, torch.nan
    leaves = [x.requires_grad_() for x in (REGIONS.float().clone(), words, weights)]
    for own in ({"word_lengths": LENGTHS[1]}, {"word_mask": there}):
        options = {"word_weights": leaves[2], "normalize": normalize, "backend": backend, **own}
        scores = maxsim_scores(*leaves[:2], **options)
        assert scores.isfinite().all()
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(scores.sum(), leaves))


def test_weights_of_late_interaction() -> None:
    similarities = torch.einsum("qtd,nld->qntl", WORDS, REGIONS)
    of_queries = (similarities.amax(3) * OF_WORDS[:, None]).sum(2)
    torch.testing.assert_close(maxsim(WORDS, REGIONS, query_weights=OF_WORDS), of_queries)
    arrays = WORDS.numpy(), REGIONS.numpy()
    torch.testing.assert_close(maxsim(*arrays, query_weights=OF_WORDS.numpy()), of_queries)
    of_documents = (similarities.amax(2) * OF_REGIONS).sum(2)
    torch.testing.assert_close(maxsim(WORDS, REGIONS, document_weights=OF_REGIONS, direction="d2q"), of_documents)
    pairs = torch.tensor([[3, 0], [1, 2]])
    listed = maxsim_pairs(WORDS, REGIONS, pairs=pairs, query_weights=OF_WORDS)
    torch.testing.assert_close(listed, of_queries[pairs[:, 0], pairs[:, 1]])
    torch.testing.assert_close(maxsim(WORDS[0], REGIONS, query_weights=OF_WORDS[0]), of_queries[:1])
    own = REGIONS[None].expand(4, -1, -1, -1), OF_REGIONS[None].expand(4, -1, -1)
    of_each = maxsim(WORDS, own[0], document_weights=own[1], direction="d2q")
    torch.testing.assert_close(of_each, of_documents)
    with pytest.raises(ValueError, match="document_weights weigh maxima that this direction does not take"):
        maxsim(WORDS, REGIONS, document_weights=OF_REGIONS)
    with pytest.raises(ValueError, match=r"document_weights must have shape \(n_queries, K, L\) = \(4, 3, 5\), got"):
        maxsim(WORDS, own[0], document_weights=OF_REGIONS, direction="d2q")


def test_weights_of_a_list_are_those_of_its_items() -> None:
    words, weights = [WORDS[0], WORDS[1, :2]], [OF_WORDS[0], OF_WORDS[1, :2]]
    with pytest.raises(ValueError, match=r"word_weights\[0\] must have shape \(4,\), one for each row, got \(2,\)"):
        maxsim_scores(REGIONS, words, word_weights=weights[::-1])
    with pytest.raises(ValueError, match="word_weights must be laid out as the features, a list of 2 items"):
        maxsim_scores(REGIONS, words, word_weights=torch.cat(weights))
    with pytest.raises(ValueError, match="word_weights must be laid out as the features, one tensor or array"):
        maxsim_scores(REGIONS, WORDS, word_weights=[*OF_WORDS])
    alone = maxsim_scores(REGIONS, words[:1], word_weights=weights[:1])
    torch.testing.assert_close(alone, maxsim_scores(REGIONS, words, word_weights=weights)[:, :1])


def test_no_weight_is_below_0() -> None:
    weights = OF_WORDS.clone()
    weights[1, 2:] = -1  # padding may hold anything
    maxsim_scores(REGIONS, WORDS, None, LENGTHS[1], word_weights=weights)
    weights[3, 2] = -0.5
    with pytest.raises(ValueError, match=r"word_weights\[3, 2\] is -0.5: weights must be at least 0"):
        maxsim_scores(REGIONS, WORDS, None, LENGTHS[1], word_weights=weights)
