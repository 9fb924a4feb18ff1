"""Training: it learns, stops and resumes bit for bit, survives a kill, and says what is wrong."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret.data.batches import Batch
from crossret.data.vocabulary import END, PAD, START, Vocabulary
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.models import Scan, ScanConfig
from crossret.tensor_files import read_header, read_tensors, write_tensors
from crossret.training import ResumedElsewhere, TrainingConfig, TrainingResult, load_model, train

OBJECTS, IMAGE_DIM = 12, 16


class ToyCorpus:
    """Images of three objects among five noisy regions; captions name the objects in any order."""

    def __init__(self, n_images: int, *, seed: int = 0, captions_per_image: int = 2) -> None:
        random = np.random.default_rng(seed)
        looks = np.random.default_rng(99).standard_normal((OBJECTS, IMAGE_DIM))  # the same in every corpus
        self.vocabulary = Vocabulary([*(f"object{number}" for number in range(OBJECTS)), "and"])
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

    def training_batches(self, batch_size: int, *, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        order = np.random.default_rng([seed, epoch]).permutation(self.n_captions)
        for begin in range(start * batch_size, self.n_captions, batch_size):
            captions = order[begin : begin + batch_size]
            images = torch.from_numpy(self.image_of_caption[captions])
            tokens, lengths = pad([self.captions[caption] for caption in captions])
            yield Batch(self.regions[images], tokens, lengths, images, torch.from_numpy(captions))

    def image_batches(self, batch_size: int) -> Iterator[Tensor]:
        yield from self.regions.split(batch_size)

    def caption_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, self.n_captions, batch_size):
            yield pad(self.captions[begin : begin + batch_size])


def pad(captions: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(caption) for caption in captions])
    return torch.tensor([caption + [PAD] * (int(lengths.max()) - len(caption)) for caption in captions]), lengths


class DroppingScan(Scan):
    """SCAN with dropout, so that a resumed training needs the random generators' state too."""

    def encode_images(self, features: Tensor, lengths: Tensor | None = None) -> Any:
        return super().encode_images(torch.nn.functional.dropout(features, 0.1, self.training), lengths)


TRAIN, DEV = ToyCorpus(22), ToyCorpus(8, seed=1)
# 44 captions: five full batches and one of four; the log's lines and the checkpoints straddle epochs.
CONFIG = TrainingConfig(
    epochs=3, decay_epoch=2, batch_size=8, learning_rate=1e-2, log_every=4, checkpoint_every=5, seed=3
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


def everything(out_dir: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Tensor]]:
    """All tensors of the checkpoint, the log without its rates, and the best model's weights."""
    tensors = checkpoint_tensors(out_dir)
    lines = [json.loads(line) for line in (out_dir / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("captions_per_second", None)
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


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from a second thread, and wait for it where other tests keep the cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("straight")
    run(out_dir)
    return out_dir


def press_ctrl_c(model: Scan, method: str, call: int) -> Scan:
    """The model, at whose ``call``-th call of ``method`` Ctrl-C is pressed."""
    original, calls = getattr(model, method), itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    setattr(model, method, wrapped)
    return model


@pytest.mark.parametrize(
    ("method", "call"),
    [
        *(("loss", step) for step in (1, 2, 5, 6, 7, 13, STEPS)),  # at checkpoints and between, at ends of epochs
        ("encode_captions", 7),  # in the first validation
        ("score", 14),  # in the second
    ],
)
def test_an_interrupted_training_goes_on_bit_for_bit(straight: Path, tmp_path: Path, method: str, call: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), method, call))
    torch.manual_seed(1)  # neither the weights nor the generators that are there on resuming matter
    result = run(tmp_path, model=DroppingScan(make_model().config), resume=True)
    assert result.epochs_run == 3
    assert_same_training(tmp_path, straight)


def test_an_interruption_loses_no_step(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), "loss", 5))
    tensors = checkpoint_tensors(tmp_path)
    assert tensors["adam.step.image.fc.bias"].item() == 4


@pytest.mark.parametrize("call", [4, 6, 8])
def test_ctrl_c_during_an_update_waits_for_its_end(
    straight: Path, tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = torch.optim.Adam.step, itertools.count(1)

    def step(self: torch.optim.Adam) -> None:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    tensors = checkpoint_tensors(tmp_path)
    assert tensors["adam.step.image.fc.bias"].item() == call
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_killed_again_and_again_it_goes_on_bit_for_bit(straight: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for kill in range(3):
        with subprocess.Popen(
            [sys.executable, __file__, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        ) as trainer:
            # Checkpoints are written at every step, so the kill falls into a write or right beside one.
            while trainer.poll() is None and (not log.is_file() or log.read_bytes().count(b"\n") <= kill):
                time.sleep(0.001)
            trainer.send_signal(signal.SIGKILL)
        checkpoint_tensors(tmp_path)
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_a_finished_training_resumes_to_its_result(straight: Path) -> None:
    before = everything(straight)
    result = run(straight, resume=True)
    assert str(everything(straight)) == str(before)
    epochs = [line for line in before[1] if line["kind"] == "epoch"]
    assert result.best_rsum == max(line["rsum"] for line in epochs)
    assert result.metrics.as_dict()["rsum"] == result.best_rsum


def test_more_epochs_can_be_added(tmp_path: Path, straight: Path) -> None:
    run(tmp_path, replace(CONFIG, epochs=1))
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_lines_of_the_log_past_the_checkpoint_are_cut(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=press_ctrl_c(make_model(), "loss", 10))
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"kind": "step", "step": 12}\n{"kind": "st')
    run(tmp_path, resume=True)
    assert_same_training(tmp_path, straight)


def test_the_log_has_a_line_an_interval_and_a_line_an_epoch(straight: Path) -> None:
    _, lines, _ = everything(straight)
    steps = [line for line in lines if line["kind"] == "step"]
    assert [(line["epoch"], line["step"]) for line in steps] == [(1, 4), (2, 8), (2, 12), (3, 16)]
    assert [line["learning_rate"] for line in steps] == [1e-2, 1e-2, 1e-2, 1e-3]
    assert all(line["loss"] > 0 and line["gradient_norm"] > 0 for line in steps)
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [(line["epoch"], line["step"]) for line in epochs] == [(1, 6), (2, 12), (3, 18)]


def test_the_best_model_is_that_of_the_highest_rsum(straight: Path, tmp_path: Path) -> None:
    # A learning rate this high forgets: the last epoch is not the best one.
    result = run(tmp_path, replace(CONFIG, epochs=6, decay_epoch=6, learning_rate=0.3))
    _, lines, _ = everything(tmp_path)
    sums = [line["rsum"] for line in lines if line["kind"] == "epoch"]
    assert result.best_rsum == max(sums)
    assert result.best_epoch == sums.index(max(sums)) + 1 < len(sums)
    for out_dir, best in ((tmp_path, max(sums)), (straight, run(straight, resume=True).best_rsum)):
        model, vocabulary = load_model(out_dir / "best")
        assert vocabulary.word2idx == TRAIN.vocabulary.word2idx
        metrics = retrieval_metrics(score_matrix(model, *encode_dataset(model, DEV)), DEV.image_of_caption)
        assert metrics.rsum == best


def test_gradients_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms, original = [], torch.optim.Adam.step

    def step(self: torch.optim.Adam) -> None:
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        norms.append(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])).item())
        original(self)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    run(tmp_path, replace(CONFIG, epochs=1, gradient_norm=0.5))
    assert norms == pytest.approx([0.5] * 6, rel=1e-3)


def test_the_caller_s_random_numbers_are_not_touched(tmp_path: Path) -> None:
    model = make_model()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(tmp_path, replace(CONFIG, epochs=1), model=model)
    assert torch.equal(torch.rand(3), expected)


def test_it_learns_to_match(tmp_path: Path) -> None:
    corpus, dev, test = ToyCorpus(300), ToyCorpus(50, seed=1), ToyCorpus(50, seed=2)
    torch.manual_seed(0)
    model = Scan(replace(make_model().config, embed_dim=48, word_dim=24))
    config = TrainingConfig(epochs=15, decay_epoch=12, batch_size=32, learning_rate=1e-2)
    train(model, corpus, dev, config, tmp_path, progress=False)
    best, _ = load_model(tmp_path / "best")
    metrics = retrieval_metrics(score_matrix(best, *encode_dataset(best, test)), test.image_of_caption)
    assert metrics.i2t.r1 >= 70
    assert metrics.t2i.r1 >= 70


def test_progress_is_shown_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, epochs=1)
    train(make_model(), TRAIN, DEV, config, tmp_path / "shown")
    shown = capsys.readouterr()
    assert "epoch 1  loss" in shown.err
    assert "rsum" in shown.err
    assert not shown.out
    train(make_model(), TRAIN, DEV, config, tmp_path / "silent", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_loss_that_is_not_a_number_names_its_step(tmp_path: Path) -> None:
    corpus = ToyCorpus(22)
    corpus.regions[11, 2, 3] = torch.nan
    order = np.random.default_rng([CONFIG.seed, 0]).permutation(corpus.n_captions)
    step = 1 + min(int(np.flatnonzero(order == caption)[0]) for caption in (22, 23)) // CONFIG.batch_size
    with pytest.raises(ValueError, match=rf"the loss is nan at step {step} \(epoch 1\)"):
        run(tmp_path, train_data=corpus)
    tensors = checkpoint_tensors(tmp_path)
    assert all(tensor.isfinite().all() for name, tensor in tensors.items() if name.startswith("model."))


def test_a_training_is_not_overwritten_nor_invented(straight: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match=r"checkpoint.safetensors: there is a training already"):
        run(straight)
    with pytest.raises(FileNotFoundError, match=r"checkpoint.safetensors: no such file"):
        run(tmp_path / "nothing", resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": replace(CONFIG, learning_rate=0.5)}, "was trained with learning_rate = 0.01, not 0.5"),
        ({"config": replace(CONFIG, batch_size=4)}, "was trained with batch_size = 8, not 4"),
        ({"train_data": ToyCorpus(23)}, "was trained with training captions = 44, not 46"),
        ({"train_data": ToyCorpus(22, seed=5)}, "was trained with training data = "),
        ({"dev_data": ToyCorpus(8, seed=5)}, "was trained with development data = "),
        ({"model": make_model(pooling="max")}, "was trained with model = "),
    ],
)
def test_another_training_s_checkpoint_is_refused(straight: Path, changed: dict[str, Any], message: str) -> None:
    arguments = {"model": make_model(), "train_data": TRAIN, "dev_data": DEV, "config": CONFIG, **changed}
    with pytest.raises(ValueError, match=rf"checkpoint.safetensors: {message}"):
        train(**arguments, out_dir=straight, resume=True, progress=False)


def test_a_damaged_checkpoint_is_refused(straight: Path, tmp_path: Path) -> None:
    contents = (straight / "checkpoint.safetensors").read_bytes()
    for damaged in (contents[: len(contents) // 2], contents[:-1], b""):
        (tmp_path / "checkpoint.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint.safetensors: not a readable safetensors file"):
            run(tmp_path, resume=True)
    types, metadata = read_header(straight / "checkpoint.safetensors")
    tensors = read_tensors(straight / "checkpoint.safetensors", types)

    def changed(**values: Any) -> str:
        return json.dumps({**json.loads(metadata["position"]), **values})

    for key, value, message in (
        ("format", "another", "not a training checkpoint of this version"),
        ("position", "[]", "its position: not a JSON object, but list"),
        ("position", "{", "its position: not JSON"),
        ("position", "[" * 200_000, "its position: not JSON"),
        ("run", "[" * 200_000, "its run: not JSON"),
        ("machine", "{}", "its machine must be"),
        ("position", changed(epoch=10**30), "its position contradicts itself: step 18 at batch 0 of epoch 10000"),
        ("position", changed(epoch=10**30, step=6 * 10**30), "its position contradicts itself: step 60000"),
        ("position", changed(batch=10**30), "its position contradicts itself: batch 10000"),
        ("position", changed(batch=7, step=25), "its position contradicts itself: batch 7 of an epoch of 6"),
        ("position", changed(batch=2), "its position contradicts itself: step 18 at batch 2 of epoch 4, 6 batches"),
        ("position", changed(best={}), "its position contradicts itself: 'best' does not hold the figures"),
        ("position", changed(best_epoch=0), "its position contradicts itself: epoch 0 was best of 3"),
        ("position", changed(best_epoch=4), "its position contradicts itself: epoch 4 was best of 3"),
        ("position", changed(sums={"kind": 1.0}), "its position contradicts itself: 'kind' is no term of the loss"),
        ("position", changed(summed=19), "its position contradicts itself: terms of 19 steps"),
        ("position", changed(sums={"loss": float("nan")}), "its position's sums must hold numbers"),
        ("position", changed(epoch_loss=float("inf")), "its position contradicts itself: epoch_loss inf"),
        ("position", changed(log_bytes=1.5), "its position's log_bytes is 1.5"),
        ("position", "{}", "its position must have the fields epoch, batch"),
        ("position", metadata["position"].replace('"step": 18', '"step": -1'), "its position's step is -1"),
        (
            "position",
            metadata["position"].replace('"sums": {"loss": ', '"sums": {"loss": null, "other": '),
            "its position's sums must hold numbers",
        ),
    ):
        write_tensors(tmp_path / "checkpoint.safetensors", tensors, {**metadata, key: value})
        with pytest.raises(ValueError, match=rf"checkpoint.safetensors: {message}"):
            run(tmp_path, resume=True)
    state = torch.zeros_like(tensors["random.cpu"])
    write_tensors(tmp_path / "checkpoint.safetensors", {**tensors, "random.cpu": state}, metadata)
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: tensor 'random.cpu' is no state of the generator"):
        run(tmp_path, resume=True)
    del tensors["adam.exp_avg.image.fc.bias"]
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, metadata)
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: tensor 'adam.exp_avg.image.fc.bias' is missing"):
        run(tmp_path, resume=True)


def test_resuming_with_other_threads_is_said(straight: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, replace(CONFIG, epochs=1))
        run(tmp_path, replace(CONFIG, epochs=2), resume=True)
    torch.set_num_threads(2)
    try:
        with pytest.warns(
            ResumedElsewhere, match=r"written with 1 thread .* resumed with 2 threads .* not bit for bit"
        ):
            result = run(tmp_path, resume=True)
    finally:
        torch.set_num_threads(1)
    assert result.epochs_run == 3


def test_a_log_shorter_than_the_checkpoint_knows_is_refused(straight: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes((straight / "checkpoint.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"log.jsonl: has 0 bytes, but the checkpoint was written after \d+"):
        run(tmp_path, resume=True)


def test_data_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    other = ToyCorpus(8)
    other.vocabulary = Vocabulary([f"word{number}" for number in range(OBJECTS + 1)])
    with pytest.raises(ValueError, match="dev_data: its vocabulary is not that of train_data"):
        run(tmp_path, dev_data=other)
    with pytest.raises(ValueError, match="the vocabulary has 17 words, but the model was made for 5"):
        run(tmp_path, model=make_model(vocabulary_size=5))
    with pytest.raises(ValueError, match="train_data: image_dim is 16, but the model's is 9"):
        run(tmp_path, model=make_model(image_dim=9))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"gradient_norm": -1.0}, "gradient_norm must be greater than 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**63}, "seed must be at most 9223372036854775807"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
    ],
)
def test_config_names_a_field_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**fields)


def test_presets_are_the_paper_s_schedules() -> None:
    assert TrainingConfig.preset("f30k") == TrainingConfig(epochs=30, decay_epoch=15, learning_rate=2e-4)
    coco = TrainingConfig.preset("coco", seed=1)
    assert (coco.epochs, coco.decay_epoch, coco.learning_rate, coco.seed) == (20, 10, 5e-4, 1)
    with pytest.raises(ValueError, match="preset must be one of f30k, coco, not 'vg'"):
        TrainingConfig.preset("vg")


if __name__ == "__main__":
    # The training that is killed: test_training.py DIRECTORY
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    run(directory, replace(CONFIG, checkpoint_every=1), resume=(directory / "checkpoint.safetensors").exists())
