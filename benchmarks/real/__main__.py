"""Data of real pictures by `crossret extract`, every model trained on it, and its recall: `make real`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.real.fetching import PACKAGES, TEXT_ENCODER, fetch
from benchmarks.real.pictures import COLLECTIONS, Captioned, splits_of
from benchmarks.real.report import RECALLS, WAYS, table
from benchmarks.records import keep_record
from crossret.data.precomputed import features_path
from crossret.extraction import load_picture_encoder
from crossret.files.json import read_json, write_json

ENCODER = "benchmarks.real.encoders:efficientnet_lite0"
SCHEDULE = "optimizer=adamw learning_rate=0.001 weight_decay=0.01 decay=cosine epochs=30 batch_size=128"
MODELS = {
    "vse": "embed_dim=512",
    "scan": "embed_dim=512",
    "sman": "",
    "han": "",
    "mhsan": "",
    "oan": "",
}
LOSSES = ("infonce", "triplet", "sigmoid")
CAPTIONS = ("tokens", "words")


def crossret(*arguments: str | Path, directory: Path) -> None:
    """Run a command of the library's; what the packages hold can be imported."""
    places = [str(Path(__file__).parents[2]), str(directory / "packages"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    subprocess.run([sys.executable, "-m", "crossret", *map(str, arguments)], check=True, env=environment)


def make_data(name: str, directory: Path) -> Path:
    """A collection's splits, encoded once; those of an earlier run stay."""
    data = directory / "data" / name.replace(" ", "_")
    if (data / "counts.json").exists():
        return data
    package, read, test = COLLECTIONS[name]
    root = directory / "debian" / package / "usr/share"
    pictures = read(directory / "debian" / package)
    sys.path.insert(0, str(directory / "packages"))
    splits = splits_of(pictures, load_picture_encoder(ENCODER), test)
    for split, own in splits.items():
        if features_path(data, split).exists():  # a killed run has left it
            continue
        captions = directory / "data" / f"{data.name}_{split}.tsv"
        captions.parent.mkdir(parents=True, exist_ok=True)
        captions.write_text("".join(_line(picture, root) for picture in own))
        encoders = ["--encoder", ENCODER, "--text-encoder", directory / TEXT_ENCODER]
        crossret(
            "extract", root, "--captions", captions, *encoders, "--output", data, "--split", split, directory=directory
        )
    write_json(data / "counts.json", {split: len(own) for split, own in splits.items()})
    return data


def _line(picture: Captioned, root: Path) -> str:
    return f"{picture.file.relative_to(root).as_posix()}\t{picture.caption}\n"


def figures_of(data: Path, model: str, captions: str, loss: str, seed: int, directory: Path) -> Path:
    """Where the recall of a training is kept."""
    return directory / "runs" / f"{data.name}-{model}-{captions}-{loss}-{seed}" / "test.json"


def train(data: Path, model: str, captions: str, loss: str, seed: int, directory: Path) -> dict[str, Any]:
    """A training's recall on the test split, and its seconds."""
    figures = figures_of(data, model, captions, loss, seed, directory)
    run = figures.parent
    if not figures.exists():
        how = ["--captions", captions, "--set", f"{MODELS[model]} loss={loss} {SCHEDULE}", "--seed", str(seed)]
        shutil.rmtree(run, ignore_errors=True)  # a killed training has left it: its time would not be known
        start = time.perf_counter()
        crossret("train", data, "--output", run, "--model", model, *how, directory=directory)
        seconds = time.perf_counter() - start
        crossret("evaluate", run, data, "--output", run / "figures.json", directory=directory)
        write_json(figures, {**read_json(run / "figures.json"), "training_seconds": round(seconds, 1)})
    found = read_json(figures)
    names = ["training_seconds", *(f"{way}_{recall}" for way, recall in product(WAYS, RECALLS))]
    return {name: found[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("build/real"), help="for packages, data and runs")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/real"))
    parser.add_argument("--collections", nargs="+", choices=[*COLLECTIONS], default=[*COLLECTIONS])
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--captions", nargs="+", choices=CAPTIONS, default=[*CAPTIONS[:1]])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=[*LOSSES[:1]])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--finished", action="store_true", help="record the trainings that are there, and train none")
    chosen = parser.parse_args()
    directory = chosen.directory.resolve()
    versions = fetch(directory)
    collections = {}
    for name in chosen.collections:
        data = make_data(name, directory)
        trainings = [
            {
                "model": model,
                "captions": captions,
                "loss": loss,
                "runs": [train(data, model, captions, loss, seed, directory) for seed in range(chosen.seeds)],
            }
            for model, captions, loss in product(chosen.models, chosen.captions, chosen.losses)
            if not chosen.finished
            or all(figures_of(data, model, captions, loss, seed, directory).exists() for seed in range(chosen.seeds))
        ]
        collections[name] = {"counts": read_json(data / "counts.json"), "trainings": trainings}
    found = {"packages": [*PACKAGES, *(f"{name} {version}" for name, version in versions.items())]}
    keep_record(chosen.results, {**found, "seeds": chosen.seeds, "collections": collections}, table)


if __name__ == "__main__":
    main()
