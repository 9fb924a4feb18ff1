"""A step of SGRAF's scores, hardest negatives and gradients, beside the loop over captions that its published code is.

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
from benchmarks.records import keep_record
from crossret_kernels import triplet_loss
from examples.sgraf import Items, Similarity, backward

REGIONS, LONGEST, DIM, SIMILARITY = 36, 20, 1024, 256  # the paper's
BATCHES = 32, 64, 128
NAMES = {"loop": "loop over captions", "crossret": "crossret"}


def loop(model: Similarity, images: Items, captions: Items) -> Tensor:
    """Scores (n_images, n_captions) of graph reasoning: each caption's words repeated for all images, and all kept."""
    n, columns = len(images.rows), []
    for words, mask, whole in zip(*captions, strict=True):
        own = words[mask].expand(n, -1, -1)
        s = F.leaky_relu(images.rows @ own.mT, 0.1)
        weights = torch.softmax(9 * (s / (s.norm(dim=2, keepdim=True) + 1e-8)).mT, 2)
        attended = F.normalize(weights @ images.rows, dim=-1)
        local = F.normalize(model.local((attended - own).square()), dim=-1)
        nodes = torch.cat([F.normalize(model.whole((images.whole - whole).square()), dim=-1)[:, None], local], 1)
        reasoning = model.reasoning
        for query, key, layer in zip(reasoning.queries, reasoning.keys, reasoning.layers, strict=True):
            edges = torch.softmax(query(nodes) @ key(nodes).mT, -1)
            nodes = torch.relu(layer(edges @ nodes))
        columns.append(torch.sigmoid(model.last(nodes[:, 0])))
    return torch.cat(columns, 1)


def measure(implementation: str, batch: int) -> dict[str, Any]:
    """Seconds and peak MiB of a step."""
    torch.manual_seed(0)
    model = Similarity(DIM, REGIONS, SIMILARITY).eval()  # without dropout: both ways make the same
    regions, words = (F.normalize(torch.randn(batch, n, DIM), dim=-1) for n in (REGIONS, LONGEST))
    lengths = torch.randint(6, LONGEST + 1, (batch,)).sort().values

    def step(n: int = batch) -> list[Tensor]:
        model.zero_grad()
        sides = [side[:n].clone().requires_grad_() for side in (regions, words)]
        items = model.items(*sides, lengths[:n])
        if implementation == "loop":
            loss = triplet_loss(loop(model, *items))
            loss.backward()
        else:
            loss = backward(model, *items, triplet_loss)
        return [loss.detach(), *(x.grad for x in (*sides, *model.parameters()) if x.grad is not None)]

    step(4)  # imports of the first backward pass
    start = time.perf_counter()
    peak, results = peak_mebibytes(step)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mebibytes": peak, "sums": [float(x.double().square().sum()) for x in results[:3]]}


def apart(implementation: str, batch: int, threads: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sgraf", "--measure", implementation, str(batch), "--threads"]
    made = subprocess.run([*command, str(threads)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(made.stdout)
    return {"implementation": implementation, "batch": batch, **found}


def table(found: dict[str, Any]) -> str:
    """A record as people read it."""
    lines = [
        f"{found['machine']['cpu']}, {found['threads']} thread{'s'[: found['threads'] > 1]}, {found['date']}: scores "
        f"of all pairs by graph reasoning, hardest negatives and gradients; {REGIONS} regions, 6 to {LONGEST} words, "
        f"D = {DIM}, similarity vectors of {SIMILARITY}.",
        "",
        "| batch | by | seconds | peak MiB |",
        "|---:|---|---:|---:|",
    ]
    for own in found["measurements"]:
        name = NAMES[own["implementation"]]
        lines.append(f"| {own['batch']} | {name} | {own['seconds']:.1f} | {own['mebibytes']:,.0f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/sgraf"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", nargs=2, metavar=("loop|crossret", "BATCH"))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.measure:
        print(json.dumps(measure(chosen.measure[0], int(chosen.measure[1]))))
        return
    measurements = []
    for batch in BATCHES:
        both = [apart(name, batch, chosen.threads) for name in NAMES]
        for own in both[1:]:
            same = zip(own["sums"], both[0]["sums"], strict=True)
            assert all(abs(x - y) <= 1e-3 * abs(y) for x, y in same), "losses or gradients differ"
        measurements += both
        print(*both, sep="\n", flush=True)
    keep_record(chosen.results, {"threads": chosen.threads, "measurements": measurements}, table)


if __name__ == "__main__":
    main()
