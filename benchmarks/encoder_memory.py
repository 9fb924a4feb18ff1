"""Peak memory of training through an encoder of pictures, by batch size, and what makes it less.

    python -m benchmarks.encoder_memory --output benchmarks/results/encoder_memory

The encoder is a ViT with random weights, of 4 layers of 384 numbers, over 100 patches of 160 x 160 pixels; the model
SCAN by its preset "scenes". Every figure is of one process of `crossret train` that takes an epoch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.records import keep_record
from crossret.data import render_scenes

BATCHES, CHUNK = (8, 32, 128), 8
WAYS: dict[str, list[str]] = {
    "whole": [],
    "chunked": ["--encode-chunk", str(CHUNK)],
    "checkpointed": ["--checkpoint-encoder"],
    "both": ["--encode-chunk", str(CHUNK), "--checkpoint-encoder"],
}
LAYERS, WIDTH, SIDE, PATCH = 4, 384, 160, 16
IMAGES = 26  # 130 captions: a step of the largest batch and a little one


def save_encoder(directory: Path) -> None:
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=6, intermediate_size=4 * WIDTH,
        image_size=SIDE, patch_size=PATCH,
    )  # fmt: skip
    ViTModel(config).save_pretrained(directory)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(directory)


def peak(scenes: Path, encoder: Path, batch: int, options: list[str]) -> int:
    """MiB of a training of its own."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "crossret", "train", str(scenes), "--preset", "scenes", "--epochs", "1"]
        command += ["--encoder", str(encoder), "--batch-size", str(batch), "--output", str(Path(output, "run"))]
        process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss // 1024


def table(result: dict[str, Any]) -> str:
    """Table of a result, in Markdown."""
    machine, rows = result["machine"], result["rows"]
    ways = [" ".join(options) for options in WAYS.values()]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads, {result['date']}: MiB at the peak of `crossret train`.",
        "",
        f"| batch | {' | '.join(f'`{way}`' if way else 'whole' for way in ways)} |",
        f"| ---: |{' ---: |' * len(WAYS)}",
    ]
    lines += [f"| {row['batch']} | {' | '.join(format(row[f'{way}_mib'], ',') for way in WAYS)} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        scenes, encoder = Path(directory, "scenes"), Path(directory, "encoder")
        render_scenes(scenes, train=IMAGES, dev=2, test=2, seed=0)
        save_encoder(encoder)
        for batch in BATCHES:
            peaks = {f"{way}_mib": peak(scenes, encoder, batch, options) for way, options in WAYS.items()}
            rows.append({"batch": batch, "chunk": CHUNK, **peaks})
            print(rows[-1], flush=True)
    keep_record(arguments.output, {"rows": rows}, table)


if __name__ == "__main__":
    main()
