"""What kernels save of the steps that contain them: training steps of the models with and without each.

A kernel is left out by what serves its operation else: "torch", in the same process and turn by turn. `python -m
benchmarks.rent` keeps the figures in benchmarks/results/rent.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.records import keep_record
from crossret.models.kinds import MODELS
from crossret_kernels.attention_pool import op as attention_pool
from crossret_kernels.backends import ENVIRONMENT_VARIABLE
from crossret_kernels.contrastive_loss import op as contrastive_loss
from crossret_kernels.dense.op import Products
from crossret_kernels.gated_attention import op as gated_attention
from crossret_kernels.heterogeneous_attention import layers
from crossret_kernels.ranking_loss import op as ranking_loss

REGIONS, DIM, WORDS, LONGEST = 36, 2048, 10_000, 20  # of the papers' data
ROUNDS = 3


def _no_cpu(*tables: dict[str, Any]) -> Callable[[], Any]:
    @contextmanager
    def without() -> Iterator[None]:
        with ExitStack() as stack:
            for table in tables:
                rest = {name: kernel for name, kernel in table.items() if name != "cpu"}
                stack.enter_context(mock.patch.dict(table, rest, clear=True))
            yield

    return without


def _in_torch(projected: torch.Tensor, mask: torch.Tensor, heads: int, scale: float) -> torch.Tensor:
    q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :], scale=scale)
    return attended.transpose(1, 2).flatten(-2)


def _in_torch_alone() -> Any:
    return mock.patch.dict(os.environ, {ENVIRONMENT_VARIABLE: "torch"})


LOSSES = _no_cpu(ranking_loss.KERNELS, contrastive_loss.INFONCE_KERNELS, contrastive_loss.SIGMOID_KERNELS)
POOLING = _no_cpu(attention_pool.KERNELS)
# (kernels, model, hyper-parameters, images, what leaves them out)
CASES: list[tuple[str, str, dict[str, Any], int, Callable[[], Any]]] = [
    ("all of it", "scan", {}, 64, _in_torch_alone),
    ("triplet_loss", "scan", {}, 128, LOSSES),
    ("triplet_loss", "vse", {}, 128, LOSSES),
    ("triplet_loss", "vse", {}, 1024, LOSSES),
    ("infonce_loss", "vse", {"loss": "infonce"}, 1024, LOSSES),
    ("sigmoid_loss", "vse", {"loss": "sigmoid"}, 1024, LOSSES),
    ("triplet_loss", "vse, one vector an image", {}, 1024, LOSSES),
    ("infonce_loss", "vse, one vector an image", {"loss": "infonce"}, 1024, LOSSES),
    ("infonce_loss", "vse, one vector an image", {"loss": "infonce"}, 8192, LOSSES),
    ("attention_pool", "mhsan", {}, 128, POOLING),
    ("attention_pool", "oan", {}, 128, POOLING),
    ("attention_pool", "sman", {}, 64, POOLING),
    ("gated_attention", "sman", {}, 64, _no_cpu(gated_attention.KERNELS)),
    ("dense of SMAN", "sman", {}, 64, lambda: mock.patch.object(Products, "serve", lambda *_: False)),
    ("HAN, dense", "han", {}, 16, lambda: mock.patch.object(Products, "serve", lambda *_: False)),
    ("dense of two layers", "han", {"layers": 2}, 16, lambda: mock.patch.object(Products, "serve", lambda *_: False)),
    ("self_attention", "han", {"layers": 2}, 16, lambda: mock.patch.object(layers, "self_attention", _in_torch)),
]  # fmt: skip


def step_of(name: str, settings: dict[str, Any], n: int) -> Callable[[], None]:
    """A training step's forward and backward of n images and captions, encoders among it."""
    kind, regions = name.split(",")[0], 1 if "," in name else REGIONS
    config, made = MODELS[kind]
    torch.manual_seed(0)
    tokens = {"text_dim": 512, "vocabulary_size": 0} if regions == 1 else {"vocabulary_size": WORDS}
    model = made(config(image_dim=DIM if regions > 1 else 512, **tokens, **settings))
    batch = {
        "regions": torch.randn(n, regions, model.config.image_dim),
        "tokens": torch.randn(n, 1, 512) if regions == 1 else torch.randint(4, WORDS, (n, LONGEST)),
        "lengths": torch.ones(n, dtype=torch.int64) if regions == 1 else torch.randint(6, LONGEST + 1, (n,)),
    }
    if hasattr(model.config, "cluster_count"):
        batch["clusters"] = torch.randint(0, model.config.cluster_count, (n, regions))

    def step() -> None:
        model.zero_grad()
        model(batch)["loss"].backward()

    return step


def measure(case: tuple[str, str, dict[str, Any], int, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    kernels, name, settings, n, without = case
    step = step_of(name, settings, n)
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(-1, rounds):  # the first warms up
        for kept in times:
            with ExitStack() as stack:
                if not kept:
                    stack.enter_context(without())
                start = time.perf_counter()
                step()
                if turn >= 0:
                    times[kept].append(time.perf_counter() - start)
    seconds = {kept: statistics.median(own) for kept, own in times.items()}
    step_name = ", ".join([name, *(f"{key} {value}" for key, value in settings.items())])
    return {"kernels": kernels, "step": step_name, "n": n, "with": seconds[True], "without": seconds[False]}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['machine']['cpu']}, {found['threads']} threads, {found['date']}: training steps, encoders among them.",
        "",
        "| kernels | step | n | with, ms | without, ms | gain |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for own in found["measurements"]:
        times = f"{own['with'] * 1e3:,.0f} | {own['without'] * 1e3:,.0f} | {own['without'] / own['with']:.2f} ×"
        lines.append(f"| {own['kernels']} | {own['step']} | {own['n']:,} | {times} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/rent"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], help="kernels of these names")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    measurements = []
    for case in CASES:
        if not chosen.only or case[0] in chosen.only:
            measurements.append(measure(case, ROUNDS))
            print(measurements[-1], flush=True)
    keep_record(chosen.results, {"threads": chosen.threads, "measurements": measurements}, table)


if __name__ == "__main__":
    main()
