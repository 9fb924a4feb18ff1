"""colpali-engine itself on crossret: losses and processors patched, and trained by Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crossret.compat import colpali as compat
from tests.compat.oracles import embeddings, some
from tests.peers.training import check_same, gradients

WHY = "colpali-engine is not installed: `make peers` installs and runs it"
losses = pytest.importorskip("colpali_engine.loss", reason=WHY, exc_type=ImportError)
maxsim = pytest.importorskip("colpali_engine.utils.maxsim", reason=WHY, exc_type=ImportError)
processing = pytest.importorskip("colpali_engine.utils.processing_utils", reason=WHY, exc_type=ImportError)

PLACES = [
    (maxsim, "maxsim_inbatch"), (maxsim, "maxsim_kd"), (processing, "maxsim_inbatch"),
    (losses.late_interaction_losses, "maxsim_inbatch"), (losses.late_interaction_losses, "maxsim_kd"),
]  # fmt: skip


@pytest.fixture
def patched() -> Iterator[None]:
    compat.patch()
    yield
    compat.unpatch()


class Encoder(nn.Module):
    """A tiny encoder whose vectors are all positive: padding cannot win there either."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 16)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.normalize(self.layer(tokens).exp(), dim=-1) * mask[..., None]


def batch() -> dict[str, Tensor]:
    return {
        "queries": embeddings(4, 5), "query_mask": some(4, 5), "pages": embeddings(4, 7, seed=1), "mask": some(4, 7),
        "negatives": embeddings(4, 2, 7, seed=2), "negative_mask": some(4, 2, 7),
    }  # fmt: skip


def encoded(encoder: Encoder, own: dict[str, Tensor], negatives: bool) -> list[Tensor]:
    sides = [encoder(own["queries"], own["query_mask"]), encoder(own["pages"], own["mask"])]
    return [*sides, encoder(own["negatives"], own["negative_mask"])] if negatives else sides


@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize(
    "name", ["ColbertLoss", "ColbertPairwiseCELoss", "ColbertNegativeCELoss", "ColbertPairwiseNegativeCELoss"]
)
def test_losses(name: str, filtering: bool, request: pytest.FixtureRequest) -> None:
    encoder, own = Encoder(), batch()
    loss = getattr(losses, name)(pos_aware_negative_filtering=filtering)

    def step() -> tuple[float, Tensor]:
        return gradients(encoder, lambda: loss(*encoded(encoder, own, "Negative" in name)))

    theirs = step()
    request.getfixturevalue("patched")
    check_same(step(), theirs)


def test_patch() -> None:
    processor = processing.BaseVisualRetrieverProcessor
    before = [getattr(module, name) for module, name in PLACES], vars(processor)["score_multi_vector"]
    queries, pages = [embeddings(n).abs() for n in (3, 5)], [embeddings(n, seed=1).abs() for n in (2, 6, 4)]
    theirs = processor.score_multi_vector(queries, pages, device="cpu")
    for _ in range(2):
        compat.patch()
        assert all(getattr(module, name) is getattr(compat, name) for module, name in PLACES)
        assert processor.score_multi_vector is compat.score_multi_vector
    torch.testing.assert_close(processor.score_multi_vector(queries, pages, device="cpu"), theirs)
    compat.unpatch()
    assert [getattr(module, name) for module, name in PLACES] == before[0]
    assert vars(processor)["score_multi_vector"] is before[1]


@pytest.mark.usefixtures("patched")
@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    """Losses learn in its mixed precision."""
    lightning: Any = pytest.importorskip("lightning", reason=WHY)

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.loss = Encoder(), losses.ColbertLoss()

        def training_step(self, own: dict[str, Tensor], _index: int) -> Tensor:
            return self.loss(*encoded(self.encoder, own, False))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    module, own = Module(), batch()
    before = module.training_step(own, 0).item()
    rows = [{name: tensor[index] for name, tensor in own.items()} for index in range(4)]
    trainer = lightning.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=tmp_path, precision="bf16-mixed",
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=4))
    assert module.training_step(own, 0).item() < before
