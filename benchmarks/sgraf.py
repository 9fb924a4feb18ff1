"""SGRAF's scores of a batch and their gradients, beside a loop over captions as the published code is.

Each measurement has a process of its own. `python -m benchmarks.sgraf` keeps the figures in benchmarks/results/sgraf.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import peak_mebibytes
from benchmarks.records import heading, keep_record
from crossret_kernels import triplet_loss
from examples.sgraf import GraphReasoning, Items, Similarity, backward

REGIONS, SHORTEST, LONGEST, DIM = 36, 8, 20, 1024
BATCHES = 32, 64, 128
MODELS = {"sgr": "graph reasoning", "saf": "attention filtration"}
LOSSES = {"hardest": "hardest negatives", "every": "all pairs"}
NAMES = {"loop": "loop over captions", "crossret": "crossret"}


def loop(model: Similarity, images: Items, captions: Items) -> Tensor:
    """Scores (n_images, n_captions): those of all images with each caption, kept for the backward pass."""
    columns = []
    for words, mask, whole in zip(*captions, strict=True):
        words = words[: int(mask.sum())].expand(len(images.rows), -1, -1)
        similarities = F.leaky_relu(images.rows @ words.mT, 0.1)
        weights = torch.softmax(9 * F.normalize(similarities, dim=2).mT, 2)
        attended = F.normalize(weights @ images.rows, dim=-1)
        local = F.normalize(model.local((attended - words).square()), dim=-1)
        of_items = F.normalize(model.whole((images.whole - whole).square()), dim=-1)
        nodes = torch.cat([of_items[:, None], local], 1)
        reasoning = model.reasoning
        if isinstance(reasoning, GraphReasoning):
            for query, key, layer in zip(reasoning.queries, reasoning.keys, reasoning.layers, strict=True):
                nodes = torch.relu(layer(torch.softmax(query(nodes) @ key(nodes).mT, -1) @ nodes))
            vector = nodes[:, 0]
        else:
            gates = F.normalize(torch.sigmoid(reasoning.gate(nodes)), p=1, dim=1)
            vector = F.normalize((gates * nodes).sum(1), dim=-1)
        columns.append(torch.sigmoid(model.last(vector)))
    return torch.cat(columns, 1)


def measure(implementation: str, kind: str, loss: str, batch: int) -> dict[str, Any]:
    """Seconds and peak MiB of a loss of a batch's scores and the gradients of features and parameters."""
    torch.manual_seed(0)
    model = Similarity(DIM, REGIONS, filtration=kind == "saf")
    regions, words = (F.normalize(torch.randn(batch, rows, DIM), dim=-1) for rows in (REGIONS, LONGEST))
    lengths = torch.randint(SHORTEST, LONGEST + 1, (batch,)).sort(descending=True).values  # its loader sorts them so
    made = triplet_loss if loss == "hardest" else lambda scores: scores.square().sum()

    def step(n: int = batch) -> list[Tensor]:
        v, e = regions[:n].clone().requires_grad_(), words[:n].clone().requires_grad_()
        torch.manual_seed(0)  # the same dropout
        model.zero_grad()
        images, captions = model.items(v, e, lengths[:n])
        if implementation == "crossret" and loss == "hardest":
            value = backward(model, images, captions, made)
        else:
            value = made((loop if implementation == "loop" else Similarity.forward)(model, images, captions))
            value.backward()
        gradients = [v.grad, e.grad, *(x.grad for x in model.parameters())]
        return [value.detach(), *(x for x in gradients if x is not None)]

    step(2)  # imports of the first backward pass
    start = time.perf_counter()
    peak, results = peak_mebibytes(step)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mebibytes": peak, "sums": [float(x.double().square().sum()) for x in results[:3]]}


def apart(threads: int, *what: str) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sgraf", "--threads", str(threads), "--measure", *what]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(made.stdout)
    return {**dict(zip(("implementation", "model", "loss"), what, strict=False)), "batch": int(what[3]), **found}


def table(found: dict[str, Any]) -> str:
    """A record as people read it."""
    lines = [
        f"{heading(found)}: a loss "
        f"and its gradients, {REGIONS} regions, {SHORTEST} to {LONGEST} words, D = {DIM}; times are the least of "
        f"{found['rounds']}.",
        "",
        "| model | gradients of | batch | by | seconds | peak MiB |",
        "|---|---|---:|---|---:|---:|",
    ]
    for own in found["measurements"]:
        first = f"| {MODELS[own['model']]} | {LOSSES[own['loss']]} | {own['batch']} "
        second = f"| {NAMES[own['implementation']]} | {own['seconds']:.1f} | {own['mebibytes']:,.0f} |"
        lines.append(first + second)
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/sgraf"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--measure", nargs=4, metavar=("loop|crossret", "sgr|saf", "hardest|every", "BATCH"))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.measure:
        *what, batch = chosen.measure
        print(json.dumps(measure(*what, int(batch))))
        return
    measurements = []
    for batch in BATCHES:
        for model in MODELS:
            for loss in LOSSES:
                runs = [
                    [apart(chosen.threads, name, model, loss, str(batch)) for name in NAMES]
                    for _ in range(chosen.rounds)
                ]
                both = [min(own, key=lambda run: run["seconds"]) for own in zip(*runs, strict=True)]
                same = zip(both[1]["sums"], both[0]["sums"], strict=True)
                assert all(abs(x - y) <= 1e-3 * abs(y) for x, y in same), "losses or gradients differ"
                measurements += both
                print(*both, sep="\n", flush=True)
    found = {"threads": chosen.threads, "rounds": chosen.rounds, "measurements": measurements}
    keep_record(chosen.results, found, table)


if __name__ == "__main__":
    main()
