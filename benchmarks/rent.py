"""Gains of the CPU's kernels in the steps that contain them: trainings and evaluations of the models.

A kernel is left out by what serves its operation else: "torch", in the same process and turn by turn. `python -m
benchmarks.rent` keeps the figures in benchmarks/results/rent.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks.records import heading, keep_record
from crossret.models.kinds import MODELS
from crossret_kernels.backends import ENVIRONMENT_VARIABLE
from crossret_kernels.dense.op import Products
from crossret_kernels.heterogeneous_attention import pairs

REGIONS, DIM, WORDS, LONGEST = 36, 2048, 10_000, 20  # sizes of the papers' data
ROUNDS = 3


def _all_in_torch() -> Any:
    return mock.patch.dict(os.environ, {ENVIRONMENT_VARIABLE: "torch"})


def _own_layers_in_torch() -> Any:
    return mock.patch.object(Products, "serve", lambda *_: False)


def _attended(projected: torch.Tensor, mask: torch.Tensor, heads: int, scale: float) -> torch.Tensor:
    q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :], scale=scale)
    return attended.transpose(1, 2).flatten(-2)


def _attention_in_torch() -> Any:
    return mock.patch.object(pairs, "self_attention", _attended)


class Case(NamedTuple):
    """Kernels, and a step that contains them.

    Attributes:
        without: a context in which they are left out.
        model, settings: kind and hyper-parameters; those of the paper but for these.
        images, captions: of the step.
        training: whether it is forward, loss and backward with the encoders; else scores of what is encoded.
        regions: of an image; 1 with vectors of a CLIP's size in the place of regions and words.
    """

    kernels: str
    without: Callable[[], Any]
    model: str
    settings: dict[str, Any]
    images: int
    captions: int
    training: bool = True
    regions: int = REGIONS


CASES = [
    Case("all of SCAN's", _all_in_torch, "scan", {}, 64, 64),
    Case("all of SCAN's", _all_in_torch, "scan", {}, 64, 320, training=False),
    Case("all of HAN's", _all_in_torch, "han", {}, 32, 32),
    Case("all of HAN's", _all_in_torch, "han", {}, 32, 160, training=False),
    Case("linear layers and self-attention", _own_layers_in_torch, "han", {}, 16, 16),
    Case("linear layers and self-attention", _own_layers_in_torch, "han", {"layers": 2}, 16, 16),
    Case("self-attention", _attention_in_torch, "han", {"layers": 2}, 16, 16),
]


def step_of(case: Case) -> Callable[[], None]:
    """A training step, encoders among it, or the scores of all pairs."""
    config, made = MODELS[case.model]
    torch.manual_seed(0)
    vectors = case.regions == 1
    sizes = {"image_dim": 512, "text_dim": 512, "vocabulary_size": 0} if vectors else {"image_dim": DIM}
    model = made(config(**{"vocabulary_size": WORDS, **sizes, **case.settings}))
    regions = torch.randn(case.images, case.regions, model.config.image_dim)
    lengths = torch.randint(6, LONGEST + 1, (case.captions,))
    tokens = torch.randint(4, WORDS, (case.captions, LONGEST))
    if vectors:
        lengths, tokens = torch.ones_like(lengths), torch.randn(case.captions, 1, 512)
    if case.training:

        def step() -> None:
            model.zero_grad()
            model({"regions": regions, "tokens": tokens, "lengths": lengths})["loss"].backward()

        return step
    model.eval()
    with torch.no_grad():
        encoded = model.encode_images(regions), model.encode_captions(tokens, lengths)

    def score() -> None:
        with torch.no_grad():
            model.score(*encoded)

    return score


def measure(case: Case) -> dict[str, Any]:
    """Median seconds with the kernels and without; the first turn warms up."""
    step = step_of(case)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(1 + ROUNDS):
        for kept, own in times.items():
            with nullcontext() if kept else case.without():
                start = time.perf_counter()
                step()
                own.append(time.perf_counter() - start)
    seconds = {kept: statistics.median(own[1:]) for kept, own in times.items()}
    named = [case.model, *(f"{name} {value}" for name, value in case.settings.items())]
    named += ["one vector an item"] if case.regions == 1 else []
    return {
        "kernels": case.kernels,
        "step": f"{', '.join(named)}: {'training' if case.training else 'scores'}",
        "items": f"{case.images:,} × {case.captions:,}",
        "with": seconds[True],
        "without": seconds[False],
    }


def table(found: dict[str, Any]) -> str:
    """A record as people read it."""
    lines = [
        f"{heading(found)}: training steps with the encoders, and scores of encoded items.",
        "",
        "| kernels | step | images × captions | with, ms | without, ms | gain |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for own in found["measurements"]:
        times = f"{own['with'] * 1e3:,.0f} | {own['without'] * 1e3:,.0f} | {own['without'] / own['with']:.2f} ×"
        lines.append(f"| {own['kernels']} | {own['step']} | {own['items']} | {times} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/rent"))
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    measurements = []
    for case in CASES:
        measurements.append(measure(case))
        print(measurements[-1], flush=True)
    keep_record(chosen.results, {"threads": chosen.threads, "measurements": measurements}, table)


if __name__ == "__main__":
    main()
