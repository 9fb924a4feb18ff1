"""Properties that training through an encoder of pictures and one of texts share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.data.corpus import PrecomputedCorpus
from crossret.hyperparameters import TrainingConfig
from crossret.hyperparameters.training import ParameterGroup
from crossret.models import Scan
from crossret.training import train
from crossret.training.callbacks import Callback, Step
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import assert_same_training

CONFIG = TrainingConfig(epochs=2, decay_epochs=(), batch_size=20, learning_rate=2e-3, log_every=1, seed=1)
Started = tuple[Scan, list[PrecomputedCorpus]]  # a model that has not learnt, and what it learns from


class First(Callback):
    """The gradients of the first step, and all losses."""

    def __init__(self, model: Scan) -> None:
        self.model, self.losses = model, list[float]()
        self.gradients: dict[str, torch.Tensor] = {}

    def on_step(self, step: Step) -> None:
        self.losses.append(step.terms["loss"])
        if not self.gradients:
            named = self.model.named_parameters()
            self.gradients = {name: each.grad.clone() for name, each in named if each.grad is not None}


def check_gradients(start: Callable[[], Started], part: str, output: Path) -> None:
    """Gradients reach the encoder, and are the same of whole batches, in chunks and where activations are computed
    again.
    """
    gradients, passes = [], Counter[str]()
    for name, chunk in (("whole", None), ("chunks", 7), ("checkpoints", None)):
        model, data = start()
        encoder = getattr(model, part)
        for dropout in (each for each in encoder.modules() if isinstance(each, torch.nn.Dropout)):
            dropout.p = 0.0  # drawn in another order by chunks
        if name == "checkpoints":
            encoder.reader.checkpoint_gradients()
        inner = next(each for place, each in encoder.named_modules() if re.search(r"layers?\.0\.", place))
        inner.register_forward_hook(lambda each, *_, name=name: passes.update([name] * each.training))
        heard = First(model)
        config = replace(CONFIG, encode_chunk=chunk, epochs=6 if name == "whole" else 1)
        train(model, *data, config, output / name, progress=False, callbacks=[heard])
        if name == "whole":
            assert np.mean(heard.losses[-3:]) < np.mean(heard.losses[:3])
        gradients.append(heard.gradients)
    assert passes["checkpoints"] == 2 * passes["whole"] / 6
    whole, *others = gradients
    assert sum(bool(whole[name].abs().max() > 0) for name in whole if name.startswith(f"{part}.")) > 10
    for name, gradient in whole.items():
        for other in others:
            torch.testing.assert_close(other[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def check_goes_on(start: Callable[[], Started], part: str, output: Path) -> None:
    """An interrupted training ends as one that was not: dropout and the optimizer's averages included."""
    config = replace(CONFIG, parameter_groups=(ParameterGroup(part, 0.1),))
    model, data = start()
    train(model, *data, config, output / "straight", progress=False)
    model, data = start()
    with pytest.raises(KeyboardInterrupt):
        train(press_ctrl_c(model, "loss", 4), *data, config, output / "resumed", progress=False)
    model, data = start()
    train(model, *data, config, output / "resumed", progress=False, resume=True)
    assert_same_training(output / "resumed", output / "straight")
    model, data = start()
    getattr(model, part).requires_grad_(False)
    with pytest.raises(ValueError, match=f"a trained {part.replace('_', ' ')}"):
        train(model, *data, config, output / "straight", progress=False, resume=True)
