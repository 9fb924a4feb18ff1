"""Steps of every model's training at its paper's widths on random features: captions a second, and what takes them."""

from __future__ import annotations

import os
import time

import torch

from benchmarks.gpu.lines import tell
from crossret.data.held import HeldRows
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.models.kinds import MODELS

STEPS, WARM = 30, 3
BATCH, REGIONS, IMAGE_DIM, WORDS, VOCABULARY = 128, 36, 2048, 20, 8000
PARTS = ("data", "encoders", "scores and loss", "gradients", "optimizer")


def main() -> None:
    on_gpu = torch.cuda.is_available()
    for kind in MODELS:
        try:
            tell(
                "training",
                line_of(kind, torch.device("cuda" if on_gpu else "cpu"), STEPS if on_gpu else 1, WARM if on_gpu else 0),
            )
        except Exception as error:
            tell("training", f"{kind}: FAILED {type(error).__name__}: {str(error)[-300:]}")


def line_of(kind: str, device: torch.device, steps: int, warm: int) -> str:
    """Time of a model's steps, under autocast to bfloat16 as `--amp` has it."""
    preset = next(iter(MODEL_CONFIGS[kind].presets))
    size = {} if device.type == "cuda" else {"embed_dim": 64}
    config = MODEL_CONFIGS[kind].preset(preset, image_dim=IMAGE_DIM, vocabulary_size=VOCABULARY, **size)
    torch.manual_seed(0)
    model = MODELS[kind][1](config).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batch = BATCH if device.type == "cuda" else 4
    features = torch.randn(8 * batch, REGIONS, IMAGE_DIM, device=device)  # held there, as those of Flickr30K are
    tokens = torch.randint(4, VOCABULARY, (batch, WORDS))
    lengths = torch.randint(6, WORDS + 1, (batch,))
    lengths[0] = WORDS
    spent, begun = dict.fromkeys(PARTS, 0.0), 0.0

    def synchronised(part: str, since: float) -> float:
        if device.type == "cuda" and measured:
            torch.cuda.synchronize()
        now = time.perf_counter()
        spent[part] += now - since
        return now

    for measured in (False, True):  # the whole, then its parts, which waiting for the device tells apart
        for number in range(warm + steps):
            if number == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                begun = time.perf_counter()
                spent.update(dict.fromkeys(PARTS, 0.0))
            now = time.perf_counter()
            images = HeldRows(features, torch.randint(len(features), (batch,)))
            given = [part.to(device) for part in (images, tokens, lengths)]
            now = synchronised("data", now)
            with torch.autocast(device.type, torch.bfloat16):
                images, captions = model.encode_images(given[0]), model.encode_captions(given[1], given[2])
                now = synchronised("encoders", now)
                loss = model.loss(images, captions, torch.arange(batch, device=device))["loss"]
            now = synchronised("scores and loss", now)
            loss.backward()
            now = synchronised("gradients", now)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            synchronised("optimizer", now)
        if device.type == "cuda":
            torch.cuda.synchronize()
        whole = (time.perf_counter() - begun) / steps
        if not measured:
            rate = batch / whole
    shares = ", ".join(f"{part} {spent[part] / steps * 1e3:.2f} ms" for part in PARTS)
    return f"{kind} ({preset}): {rate:,.0f} captions/s; a step by part: {shares}; {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
