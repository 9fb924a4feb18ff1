"""SCAN trained by the Trainer of Hugging Face's transformers, which minimises what a model calls "loss".

    crossret render-scenes --output scenes
    python examples/huggingface_trainer.py scenes trainer-scan

The second directory is a model's own then, beside the Trainer's checkpoints: `crossret evaluate`, `crossret search` and
`crossret.load` take it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from crossret import Scan, save_model
from crossret.data import PrecomputedCorpus, PrecomputedDataset, Vocabulary
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.models import Matcher, ScanConfig


class Captions(Dataset[tuple[PrecomputedCorpus, int]]):
    """The captions of a split, by their places."""

    def __init__(self, corpus: PrecomputedCorpus) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return self.corpus.n_captions

    def __getitem__(self, caption: int) -> tuple[PrecomputedCorpus, int]:
        return self.corpus, caption


class Matching(nn.Module):
    """A model without its `config`, which the Trainer would take for one of its own and write to."""

    def __init__(self, model: Matcher) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.model(batch)


def collate(captions: Sequence[tuple[PrecomputedCorpus, int]]) -> dict[str, dict[str, Tensor]]:
    """The arguments of `Matching.forward`: captions with their images."""
    corpus, _ = captions[0]
    return {"batch": corpus.batch([place for _, place in captions]).fields()}


def main(data: str, output: str, callbacks: list[TrainerCallback] | None = None, **options: Any) -> None:
    train = PrecomputedDataset(data, "train")
    vocabulary = Vocabulary.build(train.captions)
    corpus, dev = (PrecomputedCorpus(part, vocabulary) for part in (train, PrecomputedDataset(data, "dev")))
    model = Scan(ScanConfig.preset("scenes", image_dim=train.image_dim, vocabulary_size=len(vocabulary)))
    arguments = {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 64,
        "learning_rate": 1e-3,
        "max_grad_norm": 2.0,
        "eval_strategy": "epoch",
        "report_to": "none",
        "remove_unused_columns": False,  # of data sets whose columns are arguments of `forward`
        "label_names": ["batch"],  # evaluation, too, is to have the loss, as where there are labels
        "prediction_loss_only": True,  # not the loss' terms, as if they were predictions
    }
    trainer = Trainer(
        model=Matching(model),
        args=TrainingArguments(output, **{**arguments, **options}),
        data_collator=collate,
        train_dataset=Captions(corpus),
        eval_dataset=Captions(dev),
        callbacks=callbacks,
    )
    trainer.train()
    print(retrieval_metrics(score_matrix(model, *encode_dataset(model, dev)), dev.image_of_caption))
    save_model(model, output, vocabulary)


if __name__ == "__main__":
    main(*sys.argv[1:])
