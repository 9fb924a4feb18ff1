"""Features that a GPU holds: the same batches, scores and training, to the bit, within what they may take."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crossret.data import InMemoryCorpus, PrecomputedDataset, held
from crossret.data.batches import Batch, Regions
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.held import HeldRows
from crossret.data.vocabulary import Vocabulary
from crossret.distributed import Group, Share
from crossret.evaluation.scoring import GPU_ITEMS, items_at_once
from crossret.hyperparameters import TrainingConfig
from crossret.models.encoded import Encoded
from crossret.training import loop
from crossret.training.gradients import add_gradients
from crossret.training.inputs import held_within
from crossret.training.precision import products_in_tf32
from crossret.training.summary import facts_of
from tests.training.toy import CONFIG, TRAIN, ToyCorpus, assert_same_training, make_model, run

CPU = torch.device("cpu")


@pytest.fixture(params=["float16, a row an image, lengths", "float32, rows five times"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrecomputedCorpus:
    halves = request.param.startswith("float16")
    features = np.random.default_rng(0).standard_normal((7, 4, 6)).astype(np.float16 if halves else np.float32)
    if halves:
        features[2, 3:] = np.nan  # behind its length
        np.save(tmp_path / "train_lengths.npy", np.array([4, 4, 3, 1, 4, 2, 4]))
    np.save(tmp_path / "train_ims.npy", features if halves else features.repeat(5, 0))
    (tmp_path / "train_caps.txt").write_text("".join(f"a word w{number}\n" for number in range(35)))
    monkeypatch.setattr(held, "_BLOCK_BYTES", 150)  # of a few images
    return PrecomputedCorpus(PrecomputedDataset(tmp_path, "train"), Vocabulary(["a", "word"]))


def on(regions: Regions) -> list[Tensor]:
    return list(regions.on(CPU).values())


def of_batch(batch: Batch) -> list[Tensor]:
    return [*on(Regions(batch.regions, batch.boxes, batch.clusters, batch.region_lengths)), batch.tokens]


def test_batches_are_the_same(corpus: PrecomputedCorpus) -> None:
    told: list[tuple[int, int]] = []
    own = corpus.held_on(CPU, lambda done, of: told.append((done, of)))
    assert told[-1] == (7, 7) and len(told) > 2
    assert own.bytes_held == held.bytes_of(corpus.data) == 7 * 24 * corpus.data.features.itemsize
    assert corpus.bytes_held == 0 and own.fingerprint() == corpus.fingerprint()
    batches = [list(each.training_batches(4, seed=1, epoch=2)) for each in (own, corpus)]
    assert isinstance(batches[0][0].regions, HeldRows) and len(batches[0][0].regions) == 4
    for ours, theirs in zip(*batches, strict=True):
        for left, right in zip(of_batch(ours), of_batch(theirs), strict=True):
            assert left.dtype == right.dtype and torch.equal(left, right)
    for ours, theirs in zip(own.image_batches(3, slice(1, 7)), corpus.image_batches(3, slice(1, 7)), strict=True):
        assert all(map(torch.equal, on(ours), on(theirs)))


def test_what_does_not_fit_stays(corpus: PrecomputedCorpus) -> None:
    needed, toy = held.bytes_of(corpus.data), ToyCorpus(3)
    for left, expected in ((needed - 1, [0, 0]), (needed, [needed, 0]), (2 * needed, [needed, needed])):
        found = held_within([corpus, toy, corpus], CPU, left, progress=False)
        assert [each.bytes_held for each in found if isinstance(each, PrecomputedCorpus)] == expected
        assert found[1] is toy


def in_memory(toy: ToyCorpus) -> InMemoryCorpus:
    words = [" ".join(toy.vocabulary.idx2word[number] for number in caption[1:-1]) for caption in toy.captions]
    return InMemoryCorpus(toy.regions, words, toy.image_of_caption, vocabulary=toy.vocabulary)


def test_a_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, Any] = {"train_data": in_memory(TRAIN), "dev_data": in_memory(ToyCorpus(8, seed=1))}
    run(tmp_path / "read", **data)
    seen = []

    def held_here(corpora: Any, _device: Any, gibibytes: float | None, *, progress: bool) -> Any:
        seen.extend(held_within(corpora, CPU, 2**20, progress=progress))
        return seen

    monkeypatch.setattr(loop, "held_on_gpu", held_here)
    run(tmp_path / "held", gpu_features=1.0, **data)
    assert all(each.bytes_held for each in seen)
    assert_same_training(tmp_path / "read", tmp_path / "held")


class Reads(TorchDispatchMode):
    """Collects which file of the package reads a number out of a tensor, for which a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[str] = []

    def __torch_dispatch__(self, operation: Any, _types: Any, arguments: Any = (), others: Any = None) -> Any:
        if operation.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero"):
            frames = [Path(frame.filename) for frame in traceback.extract_stack()]
            self.files.append(next(path.name for path in reversed(frames) if "crossret" in path.parts))
        return operation(*arguments, **(others or {}))


def test_a_step_reads_its_loss_and_norm_when_all_of_it_is_told() -> None:
    """As one tensor; before that, inputs alone are looked at."""
    model, (batch,) = make_model(), list(TRAIN.training_batches(44, seed=0, epoch=0))
    group = Group.current()
    with Reads() as reads:
        terms, norm = add_gradients(model, group, CONFIG, [(Share.cut(group, len(batch)), batch)], "step 1")
    assert terms["loss"] > 0 and norm > 0
    assert reads.files and {*reads.files} <= {"batches.py", "tokens.py", "words.py"}


def test_lengths_on_a_device_are_not_waited_for() -> None:
    with torch.device("meta"):  # whose numbers cannot be read
        encoded = Encoded(torch.empty(3, 4, 5), torch.empty(3, dtype=torch.int64))
        assert len(encoded[:2]) == 2


def test_products_in_tf32_end_where_they_were() -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    for wanted in (True, False):
        with pytest.raises(KeyError), products_in_tf32(wanted):
            assert settings.fp32_precision == ("tf32" if wanted else before)
            raise KeyError
        assert settings.fp32_precision == before


@pytest.mark.parametrize(("device", "expected"), [("cpu", 8), ("cuda", GPU_ITEMS)])
def test_more_is_encoded_at_a_time_on_a_gpu(device: str, expected: int) -> None:
    model: Any = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device(device))]))
    assert items_at_once(model, 8) == expected
    assert items_at_once(model, 4000) == 4000
    model.encoder = object()  # of pictures
    assert items_at_once(model, 8) == 8


def test_what_is_begun_tells_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "a GPU")
    model = make_model()
    parameter = SimpleNamespace(device=torch.device("cuda"), requires_grad=True, numel=lambda: 3)
    monkeypatch.setattr(model, "parameters", lambda: iter([parameter]))
    for gigabytes, told in ((0.0, "read batch by batch"), (8.5, "8.5 GB are on the GPU")):
        config = TrainingConfig(tf32=gigabytes > 0)
        start: Any = SimpleNamespace(
            model=model, config=config, epoch=0, step=0, epoch_steps=1, bytes_held=int(gigabytes * 1e9)
        )
        facts = facts_of(start, in_memory(TRAIN), in_memory(TRAIN), {"a": 1})
        assert facts["features"] == told
        assert facts["on"].endswith("float32, products of float32 in TF32" if config.tf32 else "float32")
