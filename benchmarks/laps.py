"""LAPS's scores of a batch, forward and backward, beside the loop over captions that its published code is.

Each measurement has a process of its own. `python -m benchmarks.laps` keeps the figures in benchmarks/results/laps.
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
from crossret.models import Laps, LapsConfig
from crossret.models.encoded import Encoded

PATCHES, LONGEST, DIM = 196, 32, 512  # a ViT's at 224 pixels, and captions'
BATCHES = 16, 32, 64, 128
NAMES = {"loop": "loop over captions", "crossret": "crossret"}


def loop(model: Laps, patches: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
    """Scores (n_images, n_captions): for each caption the tokens of all images, kept for the backward pass."""
    unit, slimming = F.normalize(patches, dim=-1), model.slimming
    kept = -(-patches.shape[1] // 2)
    with torch.no_grad():
        own = (unit * F.normalize(patches.mean(1, keepdim=True), dim=-1)).sum(-1)
    columns = []
    for caption, length in zip(words, lengths.tolist(), strict=True):
        caption = caption[:length]
        with torch.no_grad():
            sums = own + (unit * F.normalize(caption.mean(0), dim=-1)).sum(-1)
        values, order = sums.sort(1, descending=True)
        chosen, others = (
            patches.gather(1, part[:, :, None].expand(-1, -1, patches.shape[2])) for part in order.split(kept, 1)
        )
        weights = torch.softmax(slimming.scale * slimming.aggregation(chosen).mT, 2)
        fused = (others * torch.softmax(values[:, kept:], 1)[:, :, None]).sum(1, keepdim=True)
        tokens = F.normalize(torch.cat([weights @ chosen, fused], 1), dim=-1)
        similarities = F.leaky_relu(F.normalize(caption, dim=-1) @ tokens.mT, model.config.clip_slope)
        columns.append(similarities.amax(2).mean(1) + similarities.amax(1).mean(1))
    return torch.stack(columns, 1)


def measure(implementation: str, batch: int) -> dict[str, Any]:
    """Seconds and peak MiB of the scores of a batch and their gradients."""
    torch.manual_seed(0)
    model = Laps(LapsConfig(image_dim=DIM, vocabulary_size=10))
    patches, words = torch.randn(batch, PATCHES, DIM), torch.randn(batch, LONGEST, DIM)
    lengths = torch.randint(8, LONGEST + 1, (batch,))
    sizes = torch.full((batch,), PATCHES)

    def step(n: int = batch) -> list[Tensor]:
        v, e = patches[:n].clone().requires_grad_(), words[:n].clone().requires_grad_()
        if implementation == "loop":
            scores = loop(model, v, e, lengths[:n])
        else:
            scores = model.score(Encoded(v, sizes[:n]), Encoded(e, lengths[:n]))
        scores.square().sum().backward()
        assert v.grad is not None and e.grad is not None
        return [scores.detach(), v.grad, e.grad]

    step(2)  # imports of the first backward pass
    start = time.perf_counter()
    peak, results = peak_mebibytes(step)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mebibytes": peak, "sums": [float(x.double().square().sum()) for x in results]}


def apart(implementation: str, batch: int, threads: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.laps", "--measure", implementation, str(batch), "--threads"]
    made = subprocess.run([*command, str(threads)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(made.stdout)
    return {"implementation": implementation, "batch": batch, **found}


def table(found: dict[str, Any]) -> str:
    """A record as people read it."""
    lines = [
        f"{heading(found)}: scores "
        f"of all pairs and their gradients, {PATCHES} patches, up to {LONGEST} words, D = {DIM}.",
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
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/laps"))
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
            assert all(abs(x - y) <= 1e-3 * abs(y) for x, y in same), "scores or gradients differ"
        measurements += both
        print(*both, sep="\n", flush=True)
    keep_record(chosen.results, {"threads": chosen.threads, "measurements": measurements}, table)


if __name__ == "__main__":
    main()
