"""SGRAF (Diao et al., AAAI 2021): scores by a graph of similarity vectors, or by a filter of them, over all pairs.

    python examples/sgraf.py --filtration

Renders scenes into a temporary directory and trains for a minute on a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossret.data import Batch, PrecomputedCorpus, PrecomputedDataset, Vocabulary, render_scenes
from crossret.encoders import RegionEncoder, WordEncoder
from crossret.evaluation import retrieval_metrics
from crossret_kernels import ScanAttended, scan_attend_scores, triplet_loss

REGIONS = 12  # in a rendered scene


class SelfAttention(nn.Module):
    """One vector of an item's rows: their mean weighted by how each goes with the plain mean.

    `regions` rows an item and a norm of each over the batch are VisualSA of the published code, None is TextSA.
    """

    def __init__(self, dim: int, regions: int | None = None, dropout: float = 0.4) -> None:
        super().__init__()
        norms = (nn.Identity(), nn.Identity()) if regions is None else (nn.BatchNorm1d(regions), nn.BatchNorm1d(dim))
        self.local, self.whole = (nn.Sequential(nn.Linear(dim, dim), x, nn.Tanh(), nn.Dropout(dropout)) for x in norms)
        self.common = nn.Linear(dim, 1)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """(n, D) unit vectors of rows (n, L, D), of which the mask (n, L) is True."""
        rows = rows * mask[..., None]
        mean = rows.sum(1) / mask.sum(1, keepdim=True)
        logits = self.common(self.local(rows) * self.whole(mean)[:, None]).squeeze(-1)
        weights = torch.softmax(logits.masked_fill(~mask, -torch.inf), 1)
        return F.normalize((weights[..., None] * rows).sum(1), dim=-1)


class GraphReasoning(nn.Module):
    """Steps of SGR: each node becomes a layer of the nodes that it attends to, and the first one's last is kept."""

    def __init__(self, dim: int, steps: int = 3) -> None:
        super().__init__()
        self.queries, self.layers = (nn.ModuleList(nn.Linear(dim, dim) for _ in range(steps)) for _ in range(2))
        # No bias: it would add to all logits of a node's softmax alike.
        self.keys = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(steps))

    def forms(self) -> list[tuple[Tensor, Tensor]]:
        """Each step's q·k of two nodes x and y as (A x + b)·y: one product of a node where query and key are two."""
        return [(k.weight.T @ q.weight, q.bias @ k.weight) for q, k in zip(self.queries, self.keys, strict=True)]

    def forward(self, nodes: Tensor, mask: Tensor, forms: list[tuple[Tensor, Tensor]]) -> Tensor:
        """(P, S) of nodes (P, N, S), of which the mask (P, N) is True."""
        for step, (form, layer) in enumerate(zip(forms, self.layers, strict=True), 1):
            wanted = nodes if step < len(forms) else nodes[:, :1]
            logits = F.linear(wanted, *form) @ nodes.mT
            edges = torch.softmax(logits.masked_fill(~mask[:, None], -torch.inf), -1)
            nodes = torch.relu(layer(edges @ nodes))
        return nodes[:, 0]


class AttentionFiltration(nn.Module):
    """SAF: the mean of the nodes by a gate of each.

    The published gate is a sigmoid of a BatchNorm of the logit, which by its running statistics is a sigmoid of another
    logit: so a trained model's is here, and training is by that as well. Statistics of a batch would bind every pair to
    all others.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 1)

    def forms(self) -> None:
        """Nothing is made ahead of the pairs."""

    def forward(self, nodes: Tensor, mask: Tensor, forms: None) -> Tensor:
        """(P, S) unit vectors of nodes (P, N, S), of which the mask (P, N) is True."""
        gates = torch.sigmoid(self.gate(nodes)) * mask[..., None]
        return F.normalize((gates * nodes).sum(1), dim=-1)  # the direction alone: the gates' sum cancels


class Items(NamedTuple):
    """Unit rows (n, L, D), the mask (n, L) of those that there are, and a unit vector of each item, (n, D)."""

    rows: Tensor
    mask: Tensor
    whole: Tensor


class Similarity(nn.Module):
    """The similarity of SGRAF: a vector of |a − q|² for each word q and what it attends to, and one of the two items.

    `forward` makes scores (n_images, n_captions) between 0 and 1, or (P,) of pairs (P, 2).
    """

    def __init__(self, dim: int, regions: int, similarity_dim: int = 256, filtration: bool = False) -> None:
        super().__init__()
        self.image, self.caption = SelfAttention(dim, regions), SelfAttention(dim)
        self.local, self.whole = nn.Linear(dim, similarity_dim), nn.Linear(dim, similarity_dim)
        self.reasoning = (AttentionFiltration if filtration else GraphReasoning)(similarity_dim)
        self.last = nn.Linear(similarity_dim, 1)

    def items(self, regions: Tensor, words: Tensor, lengths: Tensor) -> tuple[Items, Items]:
        """Rows and whole vectors of images, which have all their regions, and of captions: made ahead of the pairs."""
        every, mask = regions.new_ones(regions.shape[:2]).bool(), torch.arange(words.shape[1]) < lengths[:, None]
        return Items(regions, every, self.image(regions, every)), Items(words, mask, self.caption(words, mask))

    def forward(self, images: Items, captions: Items, pairs: Tensor | None = None) -> Tensor:
        forms = self.reasoning.forms()

        def score(made: ScanAttended, words: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
            image, caption = images.whole[pairs[:, 0]], captions.whole[pairs[:, 1]]
            whole = F.normalize(self.whole((image - caption).square()), dim=-1)
            local = F.normalize(self.local((F.normalize(made.attended, dim=-1) - words).square()), dim=-1)
            nodes, mask = torch.cat([whole[:, None], local], 1), F.pad(mask, (1, 0), value=True)
            return torch.sigmoid(self.last(self.reasoning(nodes, mask, forms))).squeeze(-1)

        lengths = captions.mask.sum(1)
        return scan_attend_scores(
            images.rows, captions.rows, score, word_lengths=lengths, pairs=pairs, lambda_softmax=9
        )


def backward(model: Similarity, images: Items, captions: Items, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The loss of all pairs, after its backward pass.

    Scores of all pairs are made without gradients; those pairs whose score the loss has a gradient of, of hardest
    negatives three for each caption at most, are scored once more for it.
    """
    with torch.no_grad():
        scores = model(images, captions)
    value = loss(scores.requires_grad_())
    (gradient,) = torch.autograd.grad(value, scores)
    pairs = gradient.nonzero()
    model(images, captions, pairs).backward(gradient[pairs[:, 0], pairs[:, 1]])
    return value.detach()


def main(train_scenes: int = 250, epochs: int = 8, filtration: bool = False, dim: int = 64) -> float:
    """Train, and return R@1 of image retrieval on the development scenes, in percent."""
    with tempfile.TemporaryDirectory() as directory:
        render_scenes(directory, train=train_scenes, dev=50, test=1)
        splits = [PrecomputedDataset(directory, name) for name in ("train", "dev")]
        vocabulary = Vocabulary.build(splits[0].captions, min_count=1)
        train, dev = (PrecomputedCorpus(split, vocabulary) for split in splits)
        model = Similarity(dim, REGIONS, dim // 2, filtration)
        encoders = RegionEncoder(train.data.image_dim, dim), WordEncoder(len(vocabulary), 32, dim)
        modules = nn.ModuleList([model, *encoders])
        optimizer = torch.optim.AdamW(modules.parameters(), lr=2e-3)

        lengths = train.batch(range(train.n_captions)).lengths

        def items(regions: Tensor, captions: Batch) -> tuple[Items, Items]:
            words = encoders[1](captions.tokens, captions.lengths)
            return model.items(encoders[0](regions), words, captions.lengths)

        for epoch in range(epochs):
            modules.train()
            # Hardest negatives of what is not trained at all teach nothing.
            negatives, reduction = ("sum", "mean") if 2 * epoch < epochs else ("hardest", "sum")
            for chosen in torch.randperm(train.n_captions).split(64):
                # A block of pairs is as wide as its longest caption.
                batch = train.batch(chosen[lengths[chosen].argsort()].tolist())
                optimizer.zero_grad()
                loss_of = partial(triplet_loss, negatives=negatives, reduction=reduction, image_ids=batch.image_ids)
                loss = backward(model, *items(batch.regions, batch), loss_of)
                optimizer.step()
            modules.eval()
            with torch.no_grad():
                images = torch.cat([regions.features for regions in dev.image_batches(100)])
                scores = model(*items(images, dev.batch(range(dev.n_captions))))
            metrics = retrieval_metrics(scores.numpy(), dev.image_of_caption)
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, R@1 {metrics.i2t.r1:.1f} / {metrics.t2i.r1:.1f}")
    return metrics.t2i.r1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-scenes", type=int, default=250)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--filtration", action="store_true", help="SAF in place of SGR")
    options = parser.parse_args()
    main(options.train_scenes, options.epochs, options.filtration)
