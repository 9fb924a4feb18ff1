"""Today's scorers as options of crossret's functions, beside the way of their published code: a loop over captions, or
all similarities at once.

A step is scores of all pairs, a loss of hardest negatives and gradients. Errors are of float64 features, beside the
same. `python -m benchmarks.scorers` keeps the figures in benchmarks/results/scorers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.records import heading, keep_record
from crossret.compat.chan import SimsEncoder
from crossret.compat.laps import matching_max_mean, xattn_score_two
from crossret_kernels import maxsim_scores, scan_scores, triplet_loss

BATCH, REGIONS, WORDS, DIM = 96, 49, 24, 512
TEMPERATURE = 0.1  # for CHAN's poolings and attention, and for soft maxima
ROUNDS = 3
Score: TypeAlias = "Callable[[Tensor, Tensor, Tensor], Tensor]"  # regions, words and their lengths


class Case(NamedTuple):
    """One scorer.

    Attributes:
        ours, theirs: (n_images, n_captions) scores.
        way: how the published code makes them.
    """

    ours: Score
    theirs: Score
    way: str


def by_caption(score: Callable[[Tensor, Tensor], Tensor], normalize: bool = False) -> Score:
    """The loop: `score` of all images (n, R, D) with one caption's words (n, W, D), repeated for each, (n,)."""

    def scores(regions: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        if normalize:
            regions, words = F.normalize(regions, dim=-1), F.normalize(words, dim=-1)
        pairs = zip(words, lengths.tolist(), strict=True)
        return torch.stack([score(regions, own[:n].expand(len(regions), -1, -1)) for own, n in pairs], 1)

    return scores


def at_once(pool: Callable[[Tensor], Tensor], best: Callable[[Tensor], Tensor] = lambda s: s.amax(-2)) -> Score:
    """All similarities (n_images, n_captions, R, W): `best` of each word, pooled with −inf behind the captions."""

    def scores(regions: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        similarities = torch.einsum("ird,cwd->icrw", regions, words)
        there = torch.arange(words.shape[1]) < lengths[:, None]
        return pool(best(similarities).masked_fill(~there, -torch.inf))

    return scores


def _max_mean(regions: Tensor, words: Tensor) -> Tensor:
    s = F.leaky_relu(words @ regions.mT, 0.1)
    return (s.amax(2).mean(1) + s.amax(1).mean(1)) / 2


def _attended(queries: Tensor, contexts: Tensor, smooth: float) -> tuple[Tensor, Tensor]:
    """SCAN's attention: weights (n, Q, C), and what queries attend to."""
    s = F.leaky_relu(queries @ contexts.mT, 0.1)
    weights = torch.softmax(smooth * s / (s.norm(dim=1, keepdim=True) + 1e-8), 2)
    return weights, weights @ contexts


def _attention_both(regions: Tensor, words: Tensor) -> Tensor:
    of_words, of_regions = _attended(words, regions, 9.0)[1], _attended(regions, words, 4.0)[1]
    scores = (F.cosine_similarity(x, y, -1).mean(1) for x, y in ((words, of_words), (regions, of_regions)))
    return sum(scores, start=words.new_zeros(())) / 2


def _focal(regions: Tensor, words: Tensor) -> Tensor:
    weights, _ = _attended(words, regions, 20.0)
    kept = weights * (weights * weights.shape[2] > weights.sum(2, keepdim=True))
    return F.cosine_similarity(words, kept / kept.sum(2, keepdim=True) @ regions, -1).mean(1)


def _grouped(regions: Tensor, words: Tensor) -> Tensor:
    s = words @ regions.mT
    low, high = s.amin(2, keepdim=True), s.amax(2, keepdim=True)
    n = (s - low) / (high - low)
    n = n * (n >= 1 / regions.shape[1])
    return F.cosine_similarity(words, n / n.sum(2, keepdim=True) @ regions, -1).mean(1)


def _soft_assignment(regions: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
    s = torch.einsum("ird,cwd->icrw", regions, words) / TEMPERATURE
    there = torch.arange(words.shape[1]) < lengths[:, None]
    attended = torch.softmax(s.masked_fill(~there[:, None], -torch.inf), -1) @ words
    relevances = (attended * regions[:, None]).sum(-1) / (attended.norm(dim=-1) + 1e-8)
    return torch.logsumexp(relevances / TEMPERATURE, -1)


def _encoder(coding: str, pooling: str) -> Score:
    encoder = SimsEncoder(coding, pooling, opt=Namespace(alpha=TEMPERATURE, belta=TEMPERATURE))
    return lambda v, e, lengths: encoder(v, e, [v.shape[1]] * len(v), lengths)


def _weights(words: Tensor) -> Tensor:
    """Weights (n, W) of words, each made of the word as DRL makes it."""
    return words[..., 0].sigmoid()


def _weighted(regions: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
    best = torch.einsum("ird,cwd->icrw", regions, words).amax(2) * _weights(words)
    return best.masked_fill(torch.arange(words.shape[1]) >= lengths[:, None], 0).sum(-1)


def _total(best: Tensor) -> Tensor:
    return best.masked_fill(best == -torch.inf, 0).sum(-1)


def _softmax_mean(best: Tensor) -> Tensor:
    return (torch.softmax(best / TEMPERATURE, -1) * best.masked_fill(best == -torch.inf, 0)).sum(-1)


LOOP, AT_ONCE = "loop", "all at once"
CASES = {
    "LAPS: best of either side, clipped": Case(
        lambda v, e, n: matching_max_mean(v, e, n, i2t=True, scan=True), by_caption(_max_mean, True), LOOP
    ),
    "LAPS: SCAN both ways": Case(xattn_score_two, by_caption(_attention_both, True), LOOP),
    "CHAN: VHA, log-sum-exp": Case(
        _encoder("VHACoding", "LSEPooling"), at_once(lambda x: torch.logsumexp(x / TEMPERATURE, -1)), AT_ONCE
    ),
    "CHAN: VHA, softmax; X-CLIP": Case(_encoder("VHACoding", "SoftmaxPooling"), at_once(_softmax_mean), AT_ONCE),
    "CHAN: VSA, log-sum-exp": Case(_encoder("VSACoding", "LSEPooling"), _soft_assignment, AT_ONCE),
    "FLIPR: the best 8 words": Case(
        lambda v, e, n: maxsim_scores(v, e, None, n, pooling="topk", top=8),
        at_once(lambda x: x.topk(8, -1).values.sum(-1)), AT_ONCE,
    ),
    "DRL: weighted words": Case(
        lambda v, e, n: maxsim_scores(v, e, None, n, word_weights=_weights(e)), _weighted, AT_ONCE
    ),
    "ColPali: soft maxima": Case(
        lambda v, e, n: maxsim_scores(v, e, None, n, context_pooling="lse", temperature=TEMPERATURE),
        at_once(_total, lambda s: TEMPERATURE * torch.logsumexp(s / TEMPERATURE, -2)), AT_ONCE,
    ),
    "BFAN: focal attention": Case(
        lambda v, e, n: scan_scores(v, e, None, n, lambda_softmax=20.0, focal=True), by_caption(_focal), LOOP
    ),
    "SPARC: min-max attention": Case(
        lambda v, e, n: scan_scores(v, e, None, n, raw_feature_norm="minmax"), by_caption(_grouped), LOOP
    ),
}  # fmt: skip


def inputs(batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors, as these models compare, and lengths of captions."""
    generator = torch.Generator().manual_seed(0)
    regions, words = (
        F.normalize(torch.randn(batch, rows, DIM, generator=generator, dtype=dtype), dim=-1).requires_grad_()
        for rows in (REGIONS, WORDS)
    )
    return regions, words, torch.randint(8, WORDS + 1, (batch,), generator=generator)


def step(score: Score, regions: Tensor, words: Tensor, lengths: Tensor) -> list[Tensor]:
    """Scores and gradients."""
    scores = score(regions, words, lengths)
    loss = triplet_loss(scores, negatives="hardest")
    return [scores.detach(), *torch.autograd.grad(loss, (regions, words))]


def measure(case: Case, batch: int = BATCH, rounds: int = ROUNDS) -> dict[str, Any]:
    """Median seconds of a step either way, in turns, and the largest difference of float64 scores and gradients."""
    exact = inputs(min(batch, 16), torch.float64)
    both = zip(step(case.ours, *exact), step(case.theirs, *exact), strict=True)
    errors = [float((ours - theirs).abs().max()) for ours, theirs in both]
    given = inputs(batch, torch.float32)
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds + 1):
        for name, own in times.items():
            start = time.perf_counter()
            step(getattr(case, name), *given)
            own.append(time.perf_counter() - start)
    seconds = {name: statistics.median(own[1:]) for name, own in times.items()}  # the first turn warms up
    return {**seconds, "of_scores": errors[0], "of_gradients": max(errors[1:])}


def table(found: dict[str, Any]) -> str:
    """A record as people read it."""
    lines = [
        f"{heading(found)}: scores "
        f"of {BATCH} × {BATCH}, hardest negatives and gradients; {REGIONS} regions, 8 to {WORDS} words, D = {DIM}.",
        "",
        "| scorer | published way | its ms | crossret, ms | × | scores off by, float64 | gradients |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, own in found["measurements"].items():
        times = f"{own['theirs'] * 1e3:,.0f} | {own['ours'] * 1e3:,.0f} | {own['theirs'] / own['ours']:.1f}"
        lines.append(f"| {name} | {CASES[name].way} | {times} | {own['of_scores']:.0e} | {own['of_gradients']:.0e} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/scorers"))
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found = {name: measure(case) for name, case in CASES.items()}
    keep_record(chosen.results, {"threads": chosen.threads, "measurements": found}, table)


if __name__ == "__main__":
    main()
