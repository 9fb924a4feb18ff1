"""Batches: every caption once, with its own image, in an order that can be taken up again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data import Batch, PrecomputedCorpus, PrecomputedDataset, Vocabulary, caption_batches
from crossret.data.batches import NumberedCaptions, prefetched

IMAGES = 7


@pytest.fixture(scope="module", params=[1, 5], ids=["a row an image", "a row a caption"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PrecomputedDataset:
    directory = tmp_path_factory.mktemp("data")
    features = np.arange(IMAGES * 3 * 2, dtype=np.float32).reshape(IMAGES, 3, 2)
    np.save(directory / "train_ims.npy", np.repeat(features, request.param, axis=0))
    np.save(directory / "train_boxes.npy", np.repeat(features.repeat(2, axis=2), request.param, axis=0))
    lines = ["word " * (1 + number % 4) + f"number{number}\n" for number in range(IMAGES * 5)]
    (directory / "train_caps.txt").write_text("".join(lines))
    return PrecomputedDataset(directory, "train")


@pytest.fixture(scope="module")
def vocabulary(data: PrecomputedDataset) -> Vocabulary:
    return Vocabulary.build(data.captions, min_count=1)


def batches_of(data: PrecomputedDataset, vocabulary: Vocabulary, batch_size: int, **options: Any) -> Iterator[Batch]:
    return caption_batches(data, NumberedCaptions(data.captions, vocabulary), batch_size, **options)


def test_batches_are_read_ahead_by_one(data: PrecomputedDataset, vocabulary: Vocabulary) -> None:
    wanted = list(batches_of(data, vocabulary, 4, seed=1, epoch=2, shuffle=True))
    read: list[int] = []

    def noted() -> Iterator[Batch]:
        for number, batch in enumerate(wanted):
            read.append(number)
            assert threading.current_thread() is not threading.main_thread()
            yield batch

    for number, batch in enumerate(ahead := prefetched(noted())):
        assert batch is wanted[number]
        if number == 3:
            break
    ahead.close()
    assert read == list(range(5))
    assert list(prefetched(iter(wanted))) == wanted


def test_what_reading_raises_comes_where_the_batch_would_have(data: PrecomputedDataset, vocabulary: Vocabulary) -> None:
    def failing() -> Iterator[Batch]:
        yield next(batches_of(data, vocabulary, 4, seed=1, epoch=2, shuffle=True))
        raise OSError("the disk is gone")

    ahead = prefetched(failing())
    next(ahead)
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_captions_are_tokenized_once(
    data: PrecomputedDataset, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    encode = vocabulary.encode
    monkeypatch.setattr(vocabulary, "encode", lambda caption: asked.append(caption) or encode(caption))
    corpus = PrecomputedCorpus(data, vocabulary)
    for epoch in (0, 1):
        assert sum(len(batch) for batch in corpus.training_batches(4, seed=0, epoch=epoch)) == data.n_captions
        list(corpus.caption_batches(8))
    assert sorted(asked) == sorted(data.captions)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 35, 100])
def test_every_caption_once_with_its_image(
    data: PrecomputedDataset, vocabulary: Vocabulary, batch_size: int, shuffle: bool
) -> None:
    seen = []
    for batch in batches_of(data, vocabulary, batch_size, seed=0, epoch=0, shuffle=shuffle):
        assert len(batch) <= batch_size
        assert batch.regions.dtype == torch.float32
        assert {batch.tokens.dtype, batch.lengths.dtype, batch.image_ids.dtype} == {torch.int64}
        assert batch.tokens.shape == (len(batch), int(batch.lengths.max()))
        for row, caption in enumerate(batch.caption_ids.tolist()):
            length = int(batch.lengths[row])
            assert batch.tokens[row, :length].tolist() == vocabulary.encode(data.captions[caption])
            assert not batch.tokens[row, length:].any()
            assert int(batch.image_ids[row]) == caption // 5
            assert batch.regions[row, 0, 0] == (caption // 5) * 6  # as the features above are numbered
            assert batch.boxes is not None
            assert torch.equal(batch.boxes[row], batch.regions[row].repeat_interleave(2, dim=1))
        seen += batch.caption_ids.tolist()
    assert sorted(seen) == list(range(IMAGES * 5))
    assert (seen == sorted(seen)) is not shuffle


def test_the_order_depends_on_the_seed_and_the_epoch(data: PrecomputedDataset, vocabulary: Vocabulary) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        (batch,) = batches_of(data, vocabulary, 100, seed=seed, epoch=epoch, shuffle=True)
        return batch.caption_ids.tolist()

    orders = [order(seed, epoch) for seed in range(3) for epoch in range(3)]
    assert orders == [order(seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9


@pytest.mark.parametrize(("batch_size", "seed", "epoch"), [(0, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_bad_arguments(
    data: PrecomputedDataset, vocabulary: Vocabulary, batch_size: int, seed: int, epoch: int
) -> None:
    with pytest.raises(ValueError, match=r"batch_size must be|must not be negative"):
        batches_of(data, vocabulary, batch_size, seed=seed, epoch=epoch, shuffle=True)
