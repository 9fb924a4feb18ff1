"""How a model is trained: the optimizer and its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crossret.hyperparameters.config import Config, check_at_least, check_positive

LARGEST_SEED = 2**63 - 1  # torch's generators take no larger one


@dataclass(frozen=True)
class TrainingConfig(Config):
    """How to train; the defaults are SCAN's on Flickr30K (Appendix A).

    Attributes:
        epochs: times through the training captions.
        decay_epochs: epochs after each of which the learning rate is divided by 10, in ascending order; may be none.
        batch_size: captions a step.
        optimizer: "adam", or "adadelta" (SMAN), which averages with a decay of 0.9.
        learning_rate: the optimizer's.
        weight_decay: the share of every weight that is added to its gradient.
        gradient_norm: gradients are scaled down to this L2 norm where they exceed it.
        seed: of the order of the captions and of whatever a model draws at random while it is trained.
        log_every: steps between two lines of the log.
        checkpoint_every: steps between two checkpoints; there is one at the end of each epoch besides.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    epochs: int = 30
    decay_epochs: tuple[int, ...] = (15,)
    batch_size: int = 128
    optimizer: Literal["adam", "adadelta"] = "adam"
    learning_rate: float = 2e-4
    weight_decay: float = 0.0
    gradient_norm: float = 2.0
    seed: int = 0
    log_every: int = 10
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "epochs", "batch_size", "log_every", "checkpoint_every")
        check_positive(self, "learning_rate", "gradient_norm")
        check_at_least(self, 0, "seed", "weight_decay")
        for earlier, later in zip((0, *self.decay_epochs), self.decay_epochs, strict=False):
            if later <= earlier:
                raise ValueError(f"decay_epochs must ascend from 1 on, not {list(self.decay_epochs)}")
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed must be at most {LARGEST_SEED}, not {self.seed}")

    def learning_rate_of(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return self.learning_rate / 10 ** sum(epoch >= decay for decay in self.decay_epochs)
