"""A training loop of your own: two small encoders, crossret's scores and loss.

    python examples/own_loop.py

Renders scenes into a temporary directory and trains for a minute on a CPU.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import nn

from crossret.data import PrecomputedCorpus, PrecomputedDataset, Vocabulary, render_scenes
from crossret.evaluation import retrieval_metrics
from crossret_kernels import scan_scores, triplet_loss


class Encoders(nn.Module):
    """Regions and words as vectors of one length: a linear layer, and embeddings read by a GRU."""

    def __init__(self, image_dim: int, words: int, dim: int = 64) -> None:
        super().__init__()
        self.image = nn.Linear(image_dim, dim)
        self.embed = nn.Embedding(words, 32)
        self.text = nn.GRU(32, dim, batch_first=True)

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.image(features), self.text(self.embed(tokens))[0]


def scores_of(model: Encoders, features: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    regions, words = model(features, tokens)
    return scan_scores(regions, words, word_lengths=lengths, normalize=True)


def main(train_scenes: int = 250, epochs: int = 8) -> float:
    """Train, and return R@1 of image retrieval on the development scenes, in percent."""
    with tempfile.TemporaryDirectory() as directory:
        render_scenes(directory, train=train_scenes, dev=50, test=1)
        splits = [PrecomputedDataset(directory, name) for name in ("train", "dev")]
        vocabulary = Vocabulary.build(splits[0].captions, min_count=1)
        train, dev = (PrecomputedCorpus(split, vocabulary) for split in splits)
        model = Encoders(train.data.image_dim, len(vocabulary))
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for epoch in range(epochs):
            order = torch.randperm(train.n_captions)
            for chosen in order.split(100):
                batch = train.batch(chosen.tolist())
                scores = scores_of(model, batch.regions, batch.tokens, batch.lengths)
                loss = triplet_loss(scores, negatives="sum", image_ids=batch.image_ids, reduction="mean")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                images = torch.cat([regions.features for regions in dev.image_batches(100)])
                captions = dev.batch(range(dev.n_captions))
                scores = scores_of(model, images, captions.tokens, captions.lengths)
            metrics = retrieval_metrics(scores.numpy(), dev.image_of_caption)
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, R@1 {metrics.i2t.r1:.1f} / {metrics.t2i.r1:.1f}")
    return metrics.t2i.r1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-scenes", type=int, default=250)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    main(options.train_scenes, options.epochs)
