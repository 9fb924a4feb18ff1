"""A model that counts statistics of its batches is trained, interrupted and shared like others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crossret.evaluation import encode_dataset, retrieval_metrics, score_matrix
from crossret.models import Mhsan, MhsanConfig, Scan
from crossret.training import load_model
from tests.distributed.ranks import on_ranks
from tests.training import toy
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, checkpoint_tensors, make_model

SHORT = replace(CONFIG, epochs=1)


class NormalizingScan(Scan):
    """SCAN with batch normalisation, of which the running statistics are buffers."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.norm = torch.nn.BatchNorm1d(config.image_dim)

    def encode_images(self, features: Tensor, lengths: Tensor | None = None, boxes: Tensor | None = None) -> Any:
        return super().encode_images(self.norm(features.flatten(0, 1)).view(features.shape), lengths, boxes)


def normalizing() -> NormalizingScan:
    torch.manual_seed(0)
    return NormalizingScan(make_model().config)


def trained(directory: Path) -> dict[str, Tensor]:
    model = normalizing()
    toy.run(directory, SHORT, model=model)
    return dict(model.state_dict())


def test_buffers_are_the_first_ranks_on_all(tmp_path: Path) -> None:
    first, second = on_ranks(2, trained, tmp_path)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
        assert torch.equal(tensor, checkpoint_tensors(tmp_path)[f"model.{name}"]), name


class PixelCorpus(toy.ToyCorpus):
    """The toy's images as pictures of five channels and 4 × 4 pixels."""

    def __init__(self, n_images: int, **others: Any) -> None:
        super().__init__(n_images, **others)
        self.regions = self.regions.view(n_images, 5, 4, 4)
        self.n_regions = 4


def reading_pixels(seed: int = 0) -> Mhsan:
    torch.manual_seed(seed)
    sizes = {"image_dim": toy.IMAGE_DIM, "vocabulary_size": len(toy.TRAIN.vocabulary), "word_dim": 6}
    config = MhsanConfig(**sizes, feature_dim=8, embed_dim=8, attention_dim=4, heads=2, text_layers=1)
    return Mhsan(config, nn.Sequential(nn.Conv2d(5, toy.IMAGE_DIM, 2, stride=2), nn.BatchNorm2d(toy.IMAGE_DIM)))


def test_a_training_with_a_backbone_is_resumed_and_its_model_loaded(tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=2)
    corpora = {"train_data": PixelCorpus(22), "dev_data": PixelCorpus(8, seed=1)}
    toy.run(tmp_path / "stopped", replace(config, epochs=1), model=reading_pixels(), **corpora)
    toy.run(tmp_path / "stopped", config, model=reading_pixels(seed=1), resume=True, **corpora)
    run = toy.run(tmp_path / "whole", config, model=reading_pixels(), **corpora)
    stopped, whole = (checkpoint_tensors(tmp_path / name) for name in ("stopped", "whole"))
    assert stopped.keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in stopped.items())
    assert whole["model.backbone.1.num_batches_tracked"] == 2 * 6
    best, _ = load_model(tmp_path / "whole" / "best", backbone=reading_pixels(2).backbone)
    scores = score_matrix(best, *encode_dataset(best, corpora["dev_data"]))
    assert retrieval_metrics(scores, corpora["dev_data"].image_of_caption).rsum == run.best_rsum
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors: .*tensor 'model\.backbone\.weight' is missing"):
        other = Mhsan(reading_pixels().config, nn.Conv2d(5, toy.IMAGE_DIM, 2, stride=2))
        toy.run(tmp_path / "whole", config, model=other, resume=True, **corpora)


def test_an_interrupted_step_leaves_no_statistics(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        toy.run(tmp_path / "stopped", SHORT, model=press_ctrl_c(normalizing(), "loss", 4))
    assert checkpoint_tensors(tmp_path / "stopped")["model.norm.num_batches_tracked"] == 3
    toy.run(tmp_path / "stopped", SHORT, model=normalizing(), resume=True)
    toy.run(tmp_path / "whole", SHORT, model=normalizing())
    stopped, whole = (checkpoint_tensors(tmp_path / name) for name in ("stopped", "whole"))
    assert str(stopped) == str(whole)
