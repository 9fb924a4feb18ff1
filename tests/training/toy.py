"""A corpus and a model small enough to train in a moment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossret.data.batches import Batch, Part, Regions
from crossret.data.corpus import ALL, slices_of
from crossret.data.vocabulary import END, PAD, START, Vocabulary
from crossret.files.json import read_json_lines
from crossret.files.tensors import read_header, read_tensors
from crossret.models import Scan, ScanConfig
from crossret.training import Callback, TrainingConfig, TrainingResult, load_model, train
from crossret.training.callbacks import Start, Step

OBJECTS, IMAGE_DIM = 12, 16


class ToyCorpus:
    """Images of three objects among five noisy regions; captions name the objects in any order."""

    def __init__(self, n_images: int, *, seed: int = 0, captions_per_image: int = 2) -> None:
        random = np.random.default_rng(seed)
        looks = np.random.default_rng(99).standard_normal((OBJECTS, IMAGE_DIM))  # the same in every corpus
        self.vocabulary = Vocabulary([*(f"object{number}" for number in range(OBJECTS)), "and"])
        self.name, self.has_boxes, self.boxes_name = "toy", False, "toy boxes"
        self.n_regions = 5
        self.image_dim = IMAGE_DIM
        self.n_images = n_images
        self.n_captions = n_images * captions_per_image
        self.image_of_caption = np.arange(self.n_captions, dtype=np.int64) // captions_per_image
        regions = 0.2 * random.standard_normal((n_images, 5, IMAGE_DIM))
        self.captions: list[list[int]] = []
        for image in regions:
            objects = random.choice(OBJECTS, 3, replace=False)
            image[:3] += looks[objects]
            for _ in range(captions_per_image):
                first, *others = (self.vocabulary.word2idx[f"object{number}"] for number in random.permutation(objects))
                self.captions.append(
                    [START, first, *[self.vocabulary.word2idx["and"]] * random.integers(2), *others, END]
                )
        self.regions = torch.from_numpy(regions.astype(np.float32))

    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self.regions.tolist(), self.captions)).encode()).hexdigest()

    def training_batches(
        self, batch_size: int, *, seed: int, epoch: int, start: int = 0, part: Part = slice
    ) -> Iterator[Batch]:
        order = np.random.default_rng([seed, epoch]).permutation(self.n_captions)
        for begin in range(start * batch_size, self.n_captions, batch_size):
            captions = order[begin : begin + batch_size]
            captions = captions[part(len(captions))]
            images = torch.from_numpy(self.image_of_caption[captions])
            tokens, lengths = pad([self.captions[caption] for caption in captions])
            yield Batch(self.regions[images], None, tokens, lengths, images, torch.from_numpy(captions))

    def image_batches(self, batch_size: int, items: slice = ALL) -> Iterator[Regions]:
        yield from map(Regions, self.regions[items].split(batch_size))

    def caption_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in slices_of(self.n_captions, batch_size, items):
            yield pad(self.captions[batch])


class SpoiltCorpus(ToyCorpus):
    """A feature of image 11 is no finite number from when its images have been looked at once."""

    def image_batches(self, batch_size: int, items: slice = ALL) -> Iterator[tuple[Tensor, None]]:
        yield from super().image_batches(batch_size, items)
        self.regions[11, 2, 3] = float("nan")


def pad(captions: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(caption) for caption in captions])
    return torch.tensor([caption + [PAD] * (int(lengths.max()) - len(caption)) for caption in captions]), lengths


class DroppingScan(Scan):
    """SCAN with dropout, so that a resumed training needs the random generators' state too."""

    def encode_images(self, features: Tensor, lengths: Tensor | None = None, boxes: Tensor | None = None) -> Any:
        return super().encode_images(torch.nn.functional.dropout(features, 0.1, self.training), lengths, boxes)


TRAIN, DEV = ToyCorpus(22), ToyCorpus(8, seed=1)
# 44 captions: five full batches and one of four; the log's lines and the checkpoints straddle epochs.
CONFIG = TrainingConfig(
    epochs=3, decay_epochs=(2,), batch_size=8, learning_rate=1e-2, log_every=4, checkpoint_every=5, seed=3
)
STEPS = 3 * 6


def make_model(corpus: ToyCorpus = TRAIN, **fields: Any) -> DroppingScan:
    torch.manual_seed(0)
    sizes = {"image_dim": IMAGE_DIM, "vocabulary_size": len(corpus.vocabulary), "embed_dim": 12, "word_dim": 6}
    return DroppingScan(ScanConfig(**{**sizes, **fields}))


def run(out_dir: Path, config: TrainingConfig = CONFIG, *, resume: bool = False, **others: Any) -> TrainingResult:
    arguments = {"train_data": TRAIN, "dev_data": DEV, **others}
    model = arguments.pop("model", None) or make_model()
    return train(model, config=config, out_dir=out_dir, resume=resume, progress=False, **arguments)


class Gradients(Callback):
    """Keeps the gradients by which each step was taken, by parameter, and their norms."""

    def on_start(self, start: Start) -> None:
        self.model = start.model
        self.taken: list[dict[str, Tensor]] = []

    def on_step(self, step: Step) -> None:
        named = self.model.named_parameters()
        self.taken.append({name: each.grad.clone() for name, each in named if each.grad is not None})

    def norms(self) -> list[float]:
        return [float(torch.cat([each.flatten() for each in taken.values()]).norm()) for taken in self.taken]


def everything(out_dir: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Tensor]]:
    """All tensors of the checkpoint, the log, and the best model's weights."""
    tensors = checkpoint_tensors(out_dir)
    lines = read_json_lines(out_dir / "log.jsonl")
    return tensors, lines, dict(load_model(out_dir / "best")[0].state_dict())


def checkpoint_tensors(out_dir: Path) -> dict[str, Tensor]:
    path = out_dir / "checkpoint.safetensors"
    return read_tensors(path, read_header(path)[0])


def assert_same_training(a: Path, b: Path) -> None:
    (tensors_a, log_a, best_a), (tensors_b, log_b, best_b) = everything(a), everything(b)
    assert log_a == log_b
    for left, right in ((tensors_a, tensors_b), (best_a, best_b)):
        assert left.keys() == right.keys()
        for name, tensor in left.items():
            assert torch.equal(tensor, right[name]), name
