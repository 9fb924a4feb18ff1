"""Inputs of gated attention at any sizes, and its scores in plain NumPy, one pair and one row at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from crossret_kernels import AttentionStep, GatedAttention
from tests.kernels.strategies import Features

Array = NDArray[np.float64]
EPS = 1e-8


def gated_parameters(
    regions: int, dim: int, gate: int, region_hidden: int, word_hidden: int, generator: torch.Generator | None = None
) -> GatedAttention:
    """Float32 parameters, for regions of so many numbers, words and contexts of `dim`; logits of order 1."""

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    def step(hidden: int, rows: int) -> AttentionStep:
        head_weight = torch.randn(hidden, generator=generator) * 2
        return AttentionStep(make(hidden, rows), make(hidden), make(hidden, gate), make(hidden), head_weight)

    return GatedAttention(
        make(gate, dim), make(gate), make(gate, dim), make(gate), step(region_hidden, regions), step(word_hidden, dim),
        make(dim, regions), make(dim),
    )  # fmt: skip


def gated_features(
    n_images: int, n_captions: int, n_regions: int, n_words: tuple[int, int], dim: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Regions and words, and the words' lengths."""
    features = torch.randn(n_images, n_regions, dim), torch.randn(n_captions, n_words[1], dim)
    return features, torch.randint(n_words[0], n_words[1] + 1, (n_captions,))


@dataclass(frozen=True)
class GatedBatch:
    """A padded batch in float64, of values that every narrower dtype represents after `to`."""

    tensors: tuple[Tensor, ...]  # regions, words, region_contexts, word_contexts and the flat parameters
    region_lengths: Tensor
    word_lengths: Tensor
    alpha: float
    pairs: Tensor | None
    kind: str = "none"

    def __repr__(self) -> str:
        sizes = f"words' D = {self.tensors[1].size(-1)}, K = {self.tensors[2].size(1)}"
        return f"GatedBatch({self.features}, {sizes}, α = {self.alpha})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every value

    @property
    def features(self) -> Features:
        return Features(*self.tensors[:2], self.region_lengths, self.word_lengths, self.pairs, self.kind)

    @property
    def parameters(self) -> GatedAttention:
        return GatedAttention.of(self.tensors[4:])

    def to(self, dtype: torch.dtype) -> GatedBatch:
        return self.having(tuple(tensor.to(dtype) for tensor in self.tensors))

    def having(self, tensors: tuple[Tensor, ...]) -> GatedBatch:
        return GatedBatch(tensors, self.region_lengths, self.word_lengths, self.alpha, self.pairs, self.kind)

    def call(self, layout: str = "padded") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of `gated_attention_scores`, in one of the three layouts."""
        region_contexts, word_contexts = self.tensors[2:4]
        keywords = {
            "region_contexts": region_contexts, "word_contexts": word_contexts, "parameters": self.parameters,
            "alpha": self.alpha, "pairs": self.pairs,
        }  # fmt: skip
        return self.features.arguments(layout), keywords

    def listed(self) -> Tensor:
        """The pairs, all of them where none are listed."""
        if self.pairs is not None:
            return self.pairs
        images, captions = (torch.arange(len(side)) for side in self.tensors[:2])
        return torch.cartesian_prod(images, captions).view(-1, 2)


@st.composite
def gated_batches(draw: st.DrawFn) -> GatedBatch:
    n_images, n_captions = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    longest_image, longest_caption = draw(st.sampled_from((1, 2, 7, 17))), draw(st.sampled_from((1, 3, 8, 16)))
    regions, dim, gate, region_hidden, word_hidden = (draw(st.sampled_from((1, 2, 5, 16, 33))) for _ in range(5))
    levels = draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    v = torch.randn(n_images, longest_image, regions, generator=generator)
    e = torch.randn(n_captions, longest_caption, dim, generator=generator)
    contexts = [torch.randn(n, levels, dim, generator=generator) for n in (n_images, n_captions)]
    parameters = gated_parameters(regions, dim, gate, region_hidden, word_hidden, generator)
    kind = draw(
        st.sampled_from(("none", "none", "zero words", "zero context", "zero embedding", "duplicates", "large"))
    )
    if kind == "zero words":
        e[draw(st.integers(0, n_captions - 1))] = 0
    elif kind == "zero context":
        contexts[draw(st.integers(0, 1))][0, 0] = 0
    elif kind == "zero embedding":
        parameters = parameters._replace(
            embedding_weight=parameters.embedding_weight * 0, embedding_bias=parameters.embedding_bias * 0
        )
    elif kind == "duplicates":
        v[:] = v[:, :1]
        e[:] = e[:, :1]
    elif kind == "large":
        v, e = v * 30, e * 30
    lengths = [
        torch.randint(1, longest + 1, (n,), generator=generator)
        for n, longest in ((n_images, longest_image), (n_captions, longest_caption))
    ]
    pairs = None
    if draw(st.booleans()):
        count = draw(st.integers(1, 12))
        pairs = torch.stack([torch.randint(n, (count,), generator=generator) for n in (n_images, n_captions)], 1)
    alpha = draw(st.sampled_from((0.0, 0.5, 0.9, 0.9, 1.0)))
    tensors = (v, e, *contexts, *parameters.flat())
    return GatedBatch(tuple(x.double() for x in tensors), lengths[0], lengths[1], alpha, pairs, kind)


def paper_score(batch: GatedBatch, image: int, caption: int) -> tuple[float, Array, Array]:
    """SMAN Eqs. 12–20 of one pair: the score, the weights of its regions and of its words."""
    regions = batch.tensors[0][image, : batch.region_lengths[image]].numpy()
    words = batch.tensors[1][caption, : batch.word_lengths[caption]].numpy()
    v_contexts, t_contexts = batch.tensors[2][image].numpy(), batch.tensors[3][caption].numpy()
    p, alpha = batch.parameters, batch.alpha
    memory_v = p.region_gate_weight.numpy() @ sum(v_contexts) + p.region_gate_bias.numpy()
    memory_t = p.word_gate_weight.numpy() @ sum(t_contexts) + p.word_gate_bias.numpy()
    region_weights = _softmax_of_step(p.region_step, regions, _sigmoid(alpha * memory_v + (1 - alpha) * memory_t))
    word_weights = _softmax_of_step(p.word_step, words, _sigmoid(alpha * memory_t + (1 - alpha) * memory_v))
    attended = sum(weight * region for weight, region in zip(region_weights, regions, strict=True))
    v2 = np.tanh(p.embedding_weight.numpy() @ attended + p.embedding_bias.numpy())
    t2 = sum(weight * word for weight, word in zip(word_weights, words, strict=True))
    levels = [*zip(v_contexts, t_contexts, strict=True), (v2, t2)]
    return sum(_cosine(v, t) for v, t in levels), region_weights, word_weights


def _softmax_of_step(step: AttentionStep, rows: Array, gate: Array) -> Array:
    query = np.tanh(step.query_weight.numpy() @ gate + step.query_bias.numpy())
    hidden = [np.tanh(step.key_weight.numpy() @ row + step.key_bias.numpy()) * query for row in rows]
    logits = np.array([float(step.head_weight.numpy() @ h) for h in hidden])
    unscaled = np.exp(logits - logits.max())
    return unscaled / unscaled.sum()


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _cosine(a: Array, b: Array) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / max(length, EPS) if length != 0 else 0.0
