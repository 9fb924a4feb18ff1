"""On tiny scenes what a paper adds makes its model better, by far more than another seed does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crossret.data import PrecomputedCorpus, PrecomputedDataset, Vocabulary, render_scenes
from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.models import MODELS

pytestmark = pytest.mark.usefixtures("one_thread")
Splits = tuple[PrecomputedCorpus, PrecomputedCorpus]
SIZES = {"embed_dim": 64, "word_dim": 32}
MHSAN = {"feature_dim": 64, "embed_dim": 128, "attention_dim": 32}


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    directory = tmp_path_factory.mktemp("scenes")
    render_scenes(directory, train=200, dev=1, test=100, workers=1)
    train, test = (PrecomputedDataset(directory, split) for split in ("train", "test"))
    vocabulary = Vocabulary.build(train.captions)
    return PrecomputedCorpus(train, vocabulary), PrecomputedCorpus(test, vocabulary)


def rsum(splits: Splits, kind: str, *, seed: int = 0, epochs: int, **fields: Any) -> float:
    """The sum of six recalls in percent, of the test split, after a training of seconds."""
    train, test = splits
    sizes = {"image_dim": train.image_dim, "vocabulary_size": len(train.vocabulary), **SIZES}
    torch.manual_seed(seed)
    config_class, model_class = MODELS[kind]
    model = model_class(config_class.preset("scenes", **{**sizes, **fields})).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = 2e-4 if epoch == epochs - 1 else 2e-3
        for batch in train.training_batches(32, seed=seed, epoch=epoch):
            optimizer.zero_grad()
            model(batch)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
    return retrieval_metrics(score_matrix(model, *encode_dataset(model, test)), test.image_of_caption).rsum


# Two models and by how much rsum falls at least from one to the other: less than half of the smallest gap of any of the
# seeds 0, 1 and 2, which are in the comments.
@pytest.mark.parametrize(
    ("epochs", "full", "ablated", "least"),
    [
        # SCAN Table 1: words attend to regions, where VSE++ has the regions' mean. 374 to 415, 129 to 138.
        (6, ("scan", {}), ("vse", {}), 100.0),
        # HAN Table 4: p = 8, or the hardest negative alone. 195 to 268, 44 to 83.
        (3, ("han", {"layers": 0}), ("han", {"layers": 0, "negatives": "hardest"}), 50.0),
        # MHSAN Table 4: ten heads, or one. 295 to 307, 250 to 263.
        (6, ("mhsan", MHSAN), ("mhsan", {**MHSAN, "heads": 1}), 10.0),
        # OAN Table 2: with attention between the modalities, or without. 375 to 410, 213 to 249.
        (4, ("oan", {}), ("oan", {"inter_attention": False}), 50.0),
    ],
    ids=["SCAN", "HAN", "MHSAN", "OAN"],
)
def test_the_full_model_is_better(
    splits: Splits, epochs: int, full: tuple[str, Any], ablated: tuple[str, Any], least: float
) -> None:
    ours, theirs = (rsum(splits, kind, epochs=epochs, **fields) for kind, fields in (full, ablated))
    assert ours > theirs + least
