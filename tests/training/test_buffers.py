"""A model that counts statistics of its batches is trained, interrupted and shared like others."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.distributed import Group
from crossret.models import Scan
from crossret.training import PartialStatistics
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
    with warnings.catch_warnings(record=True) as warned:
        toy.run(directory, SHORT, model=model)
    share = -(-SHORT.batch_size // 2)
    told = f"(norm) takes its statistics from the {share} items of a rank, not from the batch of {SHORT.batch_size}:"
    assert [told in str(each.message) for each in warned] == [True] * Group.current().is_first
    return dict(model.state_dict())


def test_buffers_are_the_first_ranks_on_all(tmp_path: Path) -> None:
    first, second = on_ranks(2, trained, tmp_path)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
        assert torch.equal(tensor, checkpoint_tensors(tmp_path)[f"model.{name}"]), name


def test_statistics_of_chunks_are_told(tmp_path: Path) -> None:
    with pytest.warns(PartialStatistics, match=r"\(norm\) takes its statistics from the 2 items of a chunk"):
        toy.run(tmp_path, replace(SHORT, encode_chunk=2), model=normalizing())


def test_an_interrupted_step_leaves_no_statistics(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        toy.run(tmp_path / "stopped", SHORT, model=press_ctrl_c(normalizing(), "loss", 4))
    assert checkpoint_tensors(tmp_path / "stopped")["model.norm.num_batches_tracked"] == 3
    toy.run(tmp_path / "stopped", SHORT, model=normalizing(), resume=True)
    toy.run(tmp_path / "whole", SHORT, model=normalizing())
    stopped, whole = (checkpoint_tensors(tmp_path / name) for name in ("stopped", "whole"))
    assert str(stopped) == str(whole)
    # Of the same hyper-parameters, as models with other backbones are.
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors: unexpected tensor 'model\.norm\."):
        toy.run(tmp_path / "whole", SHORT, model=Scan(normalizing().config), resume=True)
