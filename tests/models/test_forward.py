"""`forward`: the loss of a batch as other training loops call it, and the gradients of DistributedDataParallel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from crossret.data import Batch
from crossret.models import MODELS
from tests.kernels.subprocesses import ROOT, run_python
from tests.models.batch import BOXES, FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, make

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGE_IDS = torch.tensor([0, 1, 0])
BATCH = {"regions": FEATURES, "tokens": TOKENS, "lengths": LENGTHS, "image_ids": IMAGE_IDS}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_forward_is_the_loss(kind: str, training: bool) -> None:
    model = make(kind).train(training)
    torch.manual_seed(0)  # the same dropout
    expected = model.loss(
        model.encode_images(FEATURES, REGION_LENGTHS, BOXES), model.encode_captions(TOKENS, LENGTHS), IMAGE_IDS
    )
    fields = {
        "regions": FEATURES, "region_lengths": REGION_LENGTHS, "boxes": BOXES, "tokens": TOKENS, "lengths": LENGTHS,
        "image_ids": IMAGE_IDS,
    }  # fmt: skip
    torch.manual_seed(0)
    terms = model(fields)
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        assert torch.equal(term, expected[name]), name
    batch = Batch(FEATURES, BOXES, TOKENS, LENGTHS, IMAGE_IDS, torch.arange(3))
    assert model(batch)["loss"].requires_grad


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="forward: tokens, lengths missing from the batch"):
        make("scan")({"regions": FEATURES})


def rank(number: int, directory: Path) -> None:
    """One of two: its half of a batch through DistributedDataParallel; keeps the gradients."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=number, world_size=2)
    model = make("scan").train()
    own = slice(0, 2) if number == 0 else slice(2, 3)
    wrapped = DistributedDataParallel(model)
    terms = wrapped({name: part[own] for name, part in BATCH.items()})
    terms["loss"].backward()
    torch.save([terms["loss"].detach(), [p.grad for p in model.parameters()]], directory / f"{number}.pt")
    dist.destroy_process_group()


def test_data_parallel_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    code = "import sys, threading, torch.multiprocessing as mp; from pathlib import Path\n"
    code += "from tests.models.test_forward import rank\n"
    code += "if __name__ == '__main__': mp.spawn(rank, (Path(sys.argv[1]),), nprocs=2)\n"
    script = tmp_path / "two.py"
    script.write_text(code)
    done = run_python(str(script), str(tmp_path), directory=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    model = make("scan").train()
    loss = model(BATCH)["loss"]
    loss.backward()
    kept = [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in (0, 1)]
    torch.testing.assert_close((kept[0][0] + kept[1][0]) / 2, loss.detach())
    for _, grads in kept:
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(grad, parameter.grad)
