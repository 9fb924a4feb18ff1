"""Optimizer of a training by its config, in groups of parameters."""

from __future__ import annotations

import torch
from torch import nn

from crossret.hyperparameters import TrainingConfig
from crossret.models.protocol import Matcher

Optimizer = torch.optim.Adam | torch.optim.AdamW | torch.optim.Adadelta

# Averages that each keeps of a parameter, beside the "step" that it counts.
AVERAGES: dict[type[Optimizer], tuple[str, str]] = {
    torch.optim.Adam: ("exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.Adadelta: ("square_avg", "acc_delta"),
}


def optimizer_of(model: Matcher, config: TrainingConfig) -> Optimizer:
    """The optimizer of all parameters of a model; ``set_learning_rate`` is to be called before each step.

    Raises:
        ValueError: a parameter group has no parameter; names it.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    found = set()
    for name, parameter in model.named_parameters():
        own = next((group for group in config.parameter_groups if group.has(name)), None)
        found.add(own)
        decay = 0.0 if config.optimizer == "adamw" and parameter.ndim < 2 else config.weight_decay
        if own is not None and own.weight_decay is not None:
            decay = own.weight_decay
        groups.setdefault((1.0 if own is None else own.factor, decay), []).append(parameter)
    for group in config.parameter_groups:
        if group not in found:
            names = ", ".join(dict.fromkeys(name.partition(".")[0] for name, _ in model.named_parameters()))
            raise ValueError(
                f"parameter_groups: {group} has no parameter, or none that an earlier group leaves it; "
                f"the model's names begin with {names}"
            )
    options = [
        {"params": parameters, "factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]
    if config.optimizer == "adadelta":
        return torch.optim.Adadelta(options, lr=config.learning_rate, rho=0.9)
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(options, lr=config.learning_rate, fused=fused)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Have the next step taken at this rate, each group at its multiple."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
