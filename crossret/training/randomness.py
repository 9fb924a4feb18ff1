"""Random state of a training: the states of torch's generators, which a model draws from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CPU, CUDA = "random.cpu", "random.cuda"
RandomState = dict[str, Tensor]


def random_state(device: torch.device) -> RandomState:
    """The states of torch's generators that a model on ``device`` draws from: (bytes,) uint8 each."""
    states = {CPU: torch.get_rng_state()}
    if device.type == "cuda":
        states[CUDA] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: RandomState, device: torch.device) -> None:
    """The inverse of ``random_state``."""
    torch.set_rng_state(states[CPU])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[CUDA], device)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Have a rank other than the first draw its own numbers in a step.

    The first goes on with those that a process alone has, whose state is saved; another begins anew, as no state of it
    is kept: a training may go on with any number of ranks.
    """
    numbers = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(numbers[0] >> np.uint64(1)))
