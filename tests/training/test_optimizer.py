"""Optimizers, groups of parameters and schedules: the step that each takes, and resumption with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.training import ParameterGroup
from crossret.training.optimizer import optimizer_of
from tests.training.test_resuming import press_ctrl_c
from tests.training.toy import CONFIG, TRAIN, assert_same_training, everything, make_model, run

FACTOR = 0.1
GROUPS = (ParameterGroup("image.fc.bias", 1.0, 0.2), ParameterGroup("image", FACTOR))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adadelta"])
@pytest.mark.parametrize("groups", [(), GROUPS])
def test_the_first_step_is_the_optimizer_s(tmp_path: Path, optimizer: Any, groups: Any) -> None:
    config = replace(CONFIG, optimizer=optimizer, weight_decay=0.01, gradient_norm=1e6, learning_rate=0.5)
    config = replace(config, epochs=1, batch_size=TRAIN.n_captions, parameter_groups=groups)  # one step
    model, gradients = make_model(), {}
    loss = model.loss

    def kept(*arguments: object) -> dict[str, torch.Tensor]:
        terms = loss(*arguments)
        parameters = dict(model.named_parameters())
        values = torch.autograd.grad(terms["loss"], list(parameters.values()), retain_graph=True)
        gradients.update(zip(parameters, values, strict=True))
        return terms

    model.loss = kept
    before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    run(tmp_path, config, model=model)
    for name, parameter in model.named_parameters():
        rate, decay = 0.5, 0.01
        if optimizer == "adamw" and parameter.ndim == 1:
            decay = 0.0
        if groups and name == "image.fc.bias":
            decay = 0.2
        elif groups and name.startswith("image."):
            rate *= FACTOR
        gradient, shrunk = gradients[name].double(), before[name]
        if optimizer == "adamw":  # Loshchilov and Hutter, Algorithm 2: decay is of the weight, not of the gradient
            shrunk = before[name] * (1 - rate * decay)
        else:
            gradient = gradient + decay * before[name]
        if optimizer == "adadelta":  # Zeiler, Algorithm 1, with decay 0.9
            update = ((1e-6) ** 0.5 / (0.1 * gradient**2 + 1e-6) ** 0.5) * gradient
        else:  # Kingma and Ba, Algorithm 1, at its first step
            update = gradient / (gradient.abs() + 1e-8)
        expected = shrunk - rate * update
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-4, atol=1e-4)


def test_an_interruption_goes_on_bit_for_bit_with_groups_and_a_cosine(tmp_path: Path) -> None:
    config = replace(CONFIG, optimizer="adamw", weight_decay=1e-2, parameter_groups=GROUPS, log_every=1)
    config = replace(config, decay="cosine", warmup_steps=4)
    run(tmp_path / "straight", config)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed", config, model=press_ctrl_c(make_model(), "loss", 9))
    run(tmp_path / "resumed", config, resume=True)
    assert_same_training(tmp_path / "straight", tmp_path / "resumed")
    _, lines, _ = everything(tmp_path / "straight")
    rates = [line["learning_rate"] for line in lines if line["kind"] == "step"]
    assert rates == [config.learning_rate_of(step, 6) for step in range(18)]
    with pytest.raises(ValueError, match="was trained with epochs = 3, not 4"):  # with which the cosine ends
        run(tmp_path / "resumed", replace(config, epochs=4), resume=True)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            (ParameterGroup("backbone", 0.1),),
            "parameter_groups: backbone:0.1 has no parameter, .* begin with image, text",
        ),
        ((ParameterGroup("image"), ParameterGroup("image.fc", 0.5, 0.0)), r"parameter_groups: image.fc:0.5:0.0 has no"),
    ],
)
def test_a_group_without_parameters_is_an_error(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimizer_of(make_model(), replace(CONFIG, parameter_groups=groups))
