"""SCAN trained by Lightning: a model's forward is the loss of a batch, so that a LightningModule only passes it on.

    crossret render-scenes --output scenes
    python examples/lightning_training.py scenes lightning-scan

The second directory is a model's own then: `crossret evaluate`, `crossret search` and `crossret.load` take it.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from crossret import Scan, save_model
from crossret.data import PrecomputedCorpus, PrecomputedDataset, Vocabulary
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.models import Matcher, ScanConfig


class Matching(lightning.LightningModule):
    """Any model of crossret, trained by Adam."""

    def __init__(self, model: Matcher, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.model = model
        self.learning_rate = learning_rate

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        terms: dict[str, Tensor] = self.model(batch)
        self.log_dict(terms, prog_bar=True, batch_size=len(batch["tokens"]))
        return terms["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.learning_rate)


def loader(corpus: PrecomputedCorpus, batch_size: int = 64) -> DataLoader[int]:
    """Every caption once an epoch, with its image, as what `forward` takes by name."""
    return DataLoader(
        range(corpus.n_captions),  # type: ignore[arg-type]
        batch_size,
        shuffle=True,
        collate_fn=lambda captions: corpus.batch(captions).fields(),
    )


def main(data: str, output: str, **options: Any) -> None:
    train = PrecomputedDataset(data, "train")
    vocabulary = Vocabulary.build(train.captions)
    corpus, dev = (PrecomputedCorpus(part, vocabulary) for part in (train, PrecomputedDataset(data, "dev")))
    model = Scan(ScanConfig.preset("scenes", image_dim=train.image_dim, vocabulary_size=len(vocabulary)))
    trainer = lightning.Trainer(**{"max_epochs": 4, "gradient_clip_val": 2.0, "default_root_dir": output, **options})
    trainer.fit(Matching(model), loader(corpus))
    print(retrieval_metrics(score_matrix(model, *encode_dataset(model, dev)), dev.image_of_caption))
    save_model(model, output, vocabulary)


if __name__ == "__main__":
    main(*sys.argv[1:])
