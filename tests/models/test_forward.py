"""`forward`: the loss of a batch as other training loops call it, and the gradients of DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from crossret.data import Batch
from crossret.distributed import Group
from tests.distributed.ranks import on_ranks
from tests.models.batch import BOXES, FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, make

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGE_IDS = torch.tensor([0, 1, 0])
BATCH = {"regions": FEATURES, "tokens": TOKENS, "lengths": LENGTHS, "image_ids": IMAGE_IDS}


@pytest.mark.parametrize("training", [False, True])
def test_forward_is_the_loss(training: bool) -> None:
    model = make("sman").train(training)
    torch.manual_seed(0)  # the same dropout
    expected = model.loss(
        model.encode_images(FEATURES, REGION_LENGTHS, BOXES), model.encode_captions(TOKENS, LENGTHS), IMAGE_IDS
    )
    torch.manual_seed(0)
    terms = model({**BATCH, "region_lengths": REGION_LENGTHS, "boxes": BOXES})
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        assert torch.equal(term, expected[name]), name
    batch = Batch(FEATURES, BOXES, TOKENS, LENGTHS, IMAGE_IDS, torch.arange(3))
    assert model(batch)["loss"].requires_grad


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="forward: tokens, lengths missing from the batch"):
        make("scan")({"regions": FEATURES})


def half_of_a_batch() -> tuple[Tensor, list[Tensor]]:
    """One of two ranks: the loss of its half through DistributedDataParallel, and every parameter's gradient."""
    model = make("scan").train()
    own = slice(2, 3) if Group.current().rank else slice(0, 2)
    wrapped = DistributedDataParallel(model)
    loss = wrapped({name: part[own] for name, part in BATCH.items()})["loss"]
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


def test_data_parallel_gradients_are_those_of_the_whole_batch() -> None:
    (first, *_), (second, *_) = by_rank = on_ranks(2, half_of_a_batch)
    model = make("scan").train()
    loss = model(BATCH)["loss"]
    loss.backward()
    torch.testing.assert_close((first + second) / 2, loss.detach())
    for _, gradients in by_rank:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
