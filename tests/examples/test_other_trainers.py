"""Lightning and the Trainer of transformers take the very steps that a loop of one's own would."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import crossret
from crossret.data import render_scenes

# What Lightning warns of: PyTorch's names that it uses, and advice.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    *(pytest.mark.filterwarnings(f"ignore:{text}") for text in (".*LeafSpec", ".*many workers", ".*logging interval")),
]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scenes")
    render_scenes(directory, train=13, dev=2, test=1, workers=1)  # 65 captions: a batch of 64 and one of one
    return directory


class Recorder:
    """The model as it was at first, and the batches that it was trained by."""

    def start(self, model: Any) -> None:
        self.model = copy.deepcopy(model)
        self.batches: list[dict[str, Tensor]] = []
        model.register_forward_pre_hook(self._keep)

    def _keep(self, model: Any, arguments: tuple[Any, ...]) -> None:
        if model.training:
            self.batches.append(arguments[0])

    def trained(self, optimizer: type[torch.optim.Optimizer], clip: float) -> dict[str, Tensor]:
        """The weights after the same batches in a loop of our own."""
        assert sorted(len(batch["tokens"]) for batch in self.batches) == [1, 64]
        steps = optimizer(self.model.train().parameters(), lr=1e-3)
        for batch in self.batches:
            steps.zero_grad()
            self.model(batch)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            steps.step()
        return dict(self.model.state_dict())


def by_lightning(data: str, output: str) -> dict[str, Tensor]:
    import lightning  # here, as every worker of pytest-xdist imports this file

    from examples import lightning_training

    class Callback(Recorder, lightning.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.start(pl_module.model)

    recorder = Callback()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning_training.main(data, output, max_epochs=1, callbacks=[recorder], **quiet)
    return recorder.trained(torch.optim.Adam, 2.0)


def by_transformers(data: str, output: str) -> dict[str, Tensor]:
    from transformers import TrainerCallback

    from examples import huggingface_trainer

    class Callback(Recorder, TrainerCallback):
        def on_train_begin(self, *arguments: Any, model: Any, **more: Any) -> None:
            self.start(model.model)

    recorder = Callback()
    options = {"num_train_epochs": 1, "lr_scheduler_type": "constant", "optim": "sgd", "use_cpu": True}
    huggingface_trainer.main(data, output, [recorder], dataloader_pin_memory=False, **options)
    return recorder.trained(torch.optim.SGD, 2.0)


@pytest.mark.parametrize("train", [by_lightning, by_transformers])
def test_two_steps_are_those_of_a_loop(train: Callable[..., dict[str, Tensor]], scenes: Path, tmp_path: Path) -> None:
    expected = train(str(scenes), str(tmp_path))
    found = crossret.load(tmp_path).model.state_dict()
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, msg=name)
