"""Calls whose kernels are compiled for GPUs that are not there: a covering few."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import crossret_kernels
from crossret_kernels import (
    heterogeneous_scores,
    infonce_loss,
    maxsim_argmax,
    maxsim_scores,
    scan_attend,
    scan_attention,
    scan_scores,
    sigmoid_loss,
    triplet_loss,
)
from tests.kernels.gpu.offline import ARCHITECTURES, SHARED_LIMITS, Launch, launches_of
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.precision import tfloat32

EVERY_ARCHITECTURE = "CROSSRET_EVERY_ARCHITECTURE" in os.environ  # `make tritons`
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}
FUNCTIONS = {
    "contrastive_loss": infonce_loss,
    "cross_attention": scan_scores,
    "heterogeneous_attention": heterogeneous_scores,
    "maxsim": maxsim_scores,
    "ranking_loss": triplet_loss,
}
# Operations are known by their folders: what has no Triton yet has no cases.
BUILT = {path.parent.name for path in Path(crossret_kernels.__file__).parent.glob("*/triton")}


@dataclass(frozen=True)
class Case:
    """A call of an operation with `options`, by the precision of its products.

    Attributes:
        operation: its folder in crossret_kernels.
        precision: a dtype of the features, or "tf32" for float32 features where TF32 is allowed.
        architectures: what to compile for.
        pairs: whether pairs are listed, which have a tile each.
        packed: whether features are packed.
        gradients: whether gradients are asked for too, where the operation has them.
        regions, words: shortest and longest items.
        dim: of the features; one that no step over it divides takes masked loads.
        function: what is called, unless it is the operation's scores.
    """

    operation: str
    precision: str = "bfloat16"
    architectures: tuple[int, ...] = (90,)
    pairs: bool = False
    packed: bool = False
    gradients: bool = False
    regions: tuple[int, int] = (36, 36)
    words: tuple[int, int] = (6, 20)
    dim: int = 1024
    options: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None

    def call(self) -> None:
        generator = torch.Generator().manual_seed(0)
        sides, lengths = [], []
        for count, (shortest, longest) in ((24, self.regions), (40, self.words)):
            lengths.append(torch.randint(shortest, longest + 1, (count,), generator=generator))
            rows = (int(lengths[-1].sum()),) if self.packed else (count, longest)
            values = torch.zeros(*rows, self.dim, dtype=DTYPES[self.precision])
            sides.append(values.requires_grad_(self.gradients))
        arguments: tuple[Any, ...] = (*sides, *lengths)
        if self.packed:
            offsets = (torch.cat([torch.zeros(1, dtype=torch.int64), side.cumsum(0)]) for side in lengths)
            arguments = tuple(zip(sides, offsets, strict=True))
        pairs = torch.randint(0, 24, (17, 2), generator=generator) if self.pairs else None
        with tfloat32(self.precision == "tf32"):
            function = self.function or FUNCTIONS[self.operation]
            result = function(*arguments, pairs=pairs, backend="triton", **self.options)
            scores = result[0] if isinstance(result, tuple) else result
            if self.gradients:
                torch.autograd.grad(scores.sum(), sides)


class Loss(Case):
    """A call of `triplet_loss`, and its gradient."""

    def call(self) -> None:
        scores = torch.zeros(70, 200, dtype=DTYPES[self.precision], requires_grad=True)
        loss = triplet_loss(scores, backend="triton", **self.options)
        torch.autograd.grad(loss, scores, torch.ones_like(loss))


class Contrast(Case):
    """A call of `infonce_loss` or, where that is its function, of `sigmoid_loss`, and gradients of all it takes."""

    def call(self) -> None:
        leaves = [
            torch.zeros(70, 200, dtype=DTYPES[self.precision], requires_grad=True),
            torch.ones(()).requires_grad_(),
        ]
        if self.function is sigmoid_loss:
            leaves.append(torch.ones(()).requires_grad_())
        loss = (self.function or infonce_loss)(*leaves, backend="triton", **self.options)
        torch.autograd.grad(loss, leaves, torch.ones_like(loss))


class Layered(Case):
    """A call of `heterogeneous_scores` with one layer, and gradients of the scores."""

    def call(self) -> None:
        sides = [
            torch.zeros(2, rows[1], self.dim, dtype=DTYPES[self.precision]).requires_grad_()
            for rows in (self.regions, self.words)
        ]
        with tfloat32(self.precision == "tf32"):
            scores = heterogeneous_scores(*sides, layers=make_layers(1, self.dim), backend="triton", **self.options)
            torch.autograd.grad(scores.sum(), sides)


scan = partial(Case, "cross_attention")
patches = partial(scan, regions=(150, 197), words=(20, 77))  # too many for a tile on the chip
maxsim = partial(Case, "maxsim", regions=(128, 300), words=(32, 32), dim=128)
attended = partial(scan, pairs=True, gradients=True, function=scan_attend)
SOFT = {"context_pooling": "lse", "clip_slope": 0.1}
soft = partial(maxsim, gradients=True, options=SOFT)
long_features = partial(Case, "maxsim", regions=(50, 50), dim=1024, gradients=True)

PROJECTED = {"direction": "i2t", "relevance": "projection", "pooling": "max", "normalize": True}

# These compile to the same but for a step or two, whatever they are compiled for.
WITHOUT_PRODUCTS = {
    "pack_rows", "pool", "relevance_gradients", "store_gradients", "add_listed_gradients", "query_statistics",
    "sum_of_runs", "query_gradients", "inverse_norms", "hinge_statistics", "losses_of_statistics", "score_gradients",
    "softmax_statistics", "cross_weights", "normalised_rows",
    "normalised_row_gradients", "cross_logit_gradients", "logit_statistics", "losses_of_logits", "logit_gradients",
    "sigmoid_losses", "sigmoid_gradients", "pool_maxima", "pool_weights",
}  # fmt: skip
FEW_KINDS = 3


def mostly(*often: int, of: tuple[int, ...] = ARCHITECTURES) -> tuple[int, ...]:
    """The architectures of a case that every run of the suite compiles for, or all it is to be compiled for."""
    return of if EVERY_ARCHITECTURE else often


def few_suffice(launch: Launch) -> bool:
    """Whether a few kinds stand for all: options change the kernel little, or it is compiled with gradients too."""
    alike = {*WITHOUT_PRODUCTS, "gram_matrices"}
    return launch.name in alike or (launch.name == "attend" and not launch.kind.SAVE)


# Every kernel of scores on every architecture, others on some; at every precision on one or another. Further kinds are
# compiled by `make tritons` alone.
COVERING = [
    scan("bfloat16", ARCHITECTURES, gradients=True, options={"pooling": "lse"}),
    scan("bfloat16", packed=True, gradients=True, options={"direction": "i2t", "lambda_softmax": 4.0}),
    scan("float16", (80,), options={"raw_feature_norm": "softmax", "pooling": "sum", "normalize": True}),
    scan("tf32", mostly(80, of=(80, 90)), gradients=True),
    scan("tf32", (100,), dim=100, options={"raw_feature_norm": "l1norm", "pooling": "max"}),
    scan("tf32", gradients=True, options={"direction": "i2t", "focal": True, "lambda_softmax": 100.0}),
    scan("float32", gradients=True, options={"pooling": "lse", "normalize": True}),
    scan("tf32", dim=300, options={"raw_feature_norm": "clipped", "pooling": "lse", "lambda_lse": 200.0}),
    scan("bfloat16", pairs=True, dim=100, gradients=True, options={"raw_feature_norm": "no_norm", "pooling": "max"}),
    scan("tf32", pairs=True, options={"direction": "i2t", "raw_feature_norm": "clipped_l1norm"}),
    scan("bfloat16", regions=(40, 128), words=(20, 64), gradients=True),
    scan("float16", regions=(20, 60), words=(40, 128), gradients=True, options={"raw_feature_norm": "minmax"}),
    patches("bfloat16", mostly(80, 90), gradients=True, options={"pooling": "lse"}),
    patches("tf32", gradients=True, dim=100, options={"direction": "i2t", "lambda_softmax": 100.0}),
    patches("float32", (80,), gradients=True, options={"raw_feature_norm": "softmax"}),
    patches("float16", pairs=True, gradients=True, options={"raw_feature_norm": "minmax", "focal": True, **PROJECTED}),
    attended("bfloat16", mostly(90)),
    attended("float32", (80, 90), dim=100, options={"normalize": True, "raw_feature_norm": "l1norm", "pooling": "lse"}),
    attended("tf32", packed=True, function=scan_attention, options={"raw_feature_norm": "minmax", **PROJECTED}),
    attended("float16", regions=(100, 128), options={"raw_feature_norm": "softmax"}),
    maxsim("bfloat16", ARCHITECTURES, gradients=True),
    maxsim("float16", pairs=True, options={"direction": "i2t", "pooling": "avg", "normalize": True}),
    maxsim("float32", dim=100, gradients=True, packed=True, options={"pooling": "max"}),
    maxsim("tf32", packed=True, function=maxsim_argmax),
    maxsim("bfloat16", (90, 100), regions=(1024, 1030), words=(8, 1030)),
    maxsim("bfloat16", regions=(80, 80), gradients=True, pairs=True),
    maxsim("bfloat16", mostly(90), regions=(36, 36), words=(6, 20), dim=1024, gradients=True),
    maxsim("bfloat16", (80,), regions=(36, 36), words=(6, 20), dim=1024, options={"direction": "i2t"}),
    maxsim("tf32", (80,), regions=(36, 36), words=(6, 20), dim=1024, options={"normalize": True}),
    maxsim("bfloat16", mostly(90, of=(90, 100)), regions=(50, 50), dim=1024, options={"direction": "i2t"}),
    maxsim("bfloat16", mostly(90), gradients=True, options={"pooling": "avg", "clip_slope": 0.1}),
    maxsim("float16", (80,), gradients=True, pairs=True, options={"pooling": "topk", "top": 9, "normalize": True}),
    maxsim("float32", regions=(20, 36), packed=True, gradients=True, options={"pooling": "lse"}),
    maxsim("bfloat16", (100,), words=(150, 197), gradients=True, options={"pooling": "softmax", "direction": "i2t"}),
    soft("bfloat16", mostly(90, of=ARCHITECTURES)),
    soft("float16", (80,), pairs=True, options={"pooling": "avg", "normalize": True, **SOFT}),
    soft("tf32", words=(150, 197), dim=1024, options={"direction": "i2t", "pooling": "lse", **SOFT}),
    soft("float32", mostly(80), regions=(20, 36), packed=True, options={"normalize": True, **SOFT}),
    long_features("bfloat16", mostly(80), options={"direction": "i2t", "pooling": "max", "normalize": True}),
    long_features("bfloat16", mostly(80, of=(80, 100)), words=(150, 197), options={"normalize": True}),
    Loss("ranking_loss", "float32", mostly(80), options={"negatives": "softmax"}),
    Loss("ranking_loss", "bfloat16", options={"negatives": "softmax", "p": 1.5, "image_ids": [0] * 200}),
    Loss("ranking_loss", "bfloat16", mostly(100), options={"positive_offset": 1, "reduction": "none"}),
    Loss("ranking_loss", "float16", (80,), options={"negatives": "sum", "caption_ids": [0] * 200}),
    Contrast("contrastive_loss", "float32", mostly(80), options={"label_smoothing": 0.1}),
    Contrast("contrastive_loss", "bfloat16", options={"image_ids": [0] * 200, "reduction": "none"}),
    Contrast("contrastive_loss", "float16", (80,), options={"caption_ids": [0] * 200, "positive_offset": 1}),
    Contrast("contrastive_loss", "float32", function=sigmoid_loss, options={"reduction": "none"}),
    Contrast("contrastive_loss", "bfloat16", mostly(100), function=sigmoid_loss, options={"image_ids": [0] * 200}),
    Layered("heterogeneous_attention", "bfloat16", mostly(100)),
    Layered("heterogeneous_attention", "tf32", dim=512, options={"direction": "i2t", "pooling": "lse"}),
    Layered("heterogeneous_attention", "float32", (80,), dim=100, options={"heads": 2, "pooling": "max"}),
]


# Calls whose kernels take the most shared memory: which kernels, and of their constants those that tell them apart.
LARGEST: list[tuple[Case, str, dict[str, Any]]] = [
    (scan("bfloat16", gradients=True), "attend", {"SAVE": True}),
    (scan("bfloat16", gradients=True), "similarity_gradients", {}),
    (patches("bfloat16", gradients=True), "attend", {"SAVE": True}),
    (patches("tf32", pairs=True, options={"normalize": True, "lambda_softmax": 100.0}), "attend", {}),
    (attended("float32"), "pair_gradients", {}),
    (attended("float32"), "sum_pairs", {"OF_CONTEXTS": True}),
    (maxsim("tf32", packed=True, function=maxsim_argmax), "best_of_tiles", {"INDEX": True}),
    (maxsim("bfloat16", regions=(50, 50), dim=1024, options={"direction": "i2t"}), "best_of_tiles", {}),
    (maxsim("bfloat16", words=(150, 197), dim=1024, options={"normalize": True}), "best_of_items", {}),
    (soft("tf32", words=(150, 197), dim=1024), "soft_gradients", {}),
]


def with_little_memory() -> dict[str, tuple[Launch, int]]:
    """By a name for it: the kernels that take most, as devices launch them that have little, and the architecture."""
    found = {}
    both = itertools.product(LARGEST, (89, 120))
    for (case, name, constants), architecture in (
        both if EVERY_ARCHITECTURE else zip(LARGEST, itertools.cycle((89, 120)))
    ):
        for launch in launches_of(case.call, SHARED_LIMITS[architecture]):
            if launch.name == name and constants.items() <= launch.kind._asdict().items():
                found[f"{len(found):02}-sm_{architecture}-{name}"] = launch, architecture
    return found


def compilations() -> dict[str, tuple[Launch, int]]:
    """By a name for it: what the cases launch and the architecture, each once."""
    found: dict[tuple[str, int], Launch] = {}
    for case in COVERING:
        if case.operation in BUILT:
            launches = launches_of(case.call)
            for launch, architecture in itertools.product(launches, case.architectures):
                alike = launch.name, few_suffice(launch)
                kinds = sum((other.name, few_suffice(other)) == alike for other in found.values())
                if not few_suffice(launch) or kinds < FEW_KINDS:
                    found.setdefault((launch.key, architecture), launch)
    named: dict[str, tuple[Launch, int]] = {}
    of_run: set[tuple[Any, ...]] = set()
    for (_, architecture), launch in found.items():
        kinds = {(launch.name, architecture), (launch.name, launch.precision, launch.dtype)}
        if launch.name not in WITHOUT_PRODUCTS:  # each has instructions of its own
            kinds = {(launch.name, architecture, launch.precision, launch.dtype)}
        if kinds <= of_run and not EVERY_ARCHITECTURE:
            continue
        of_run |= kinds
        dtype = str(launch.dtype).removeprefix("torch.")
        named[f"{len(named):03}-sm_{architecture}-{launch.name}-{dtype}"] = launch, architecture
    return named
