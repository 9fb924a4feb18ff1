"""How a model is trained: the optimizer and its schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from crossret.files.numbers import decimal_number
from crossret.hyperparameters.config import LARGEST_FLOAT32, NONE, Config, check_at_least, check_positive, option

LARGEST_SEED = 2**63 - 1  # torch's generators take no larger one
ENCODER_RATE = "1e-5"  # learning rate of pretrained encoders where none is asked for


@dataclass(frozen=True)
class ParameterGroup(Config):
    """How some of a model's parameters are trained otherwise than the rest.

    Attributes:
        prefix: their names begin with this and a dot, or are this: "image", "text.embed"; "" is all.
        factor: the learning rate is multiplied by it, at every step.
        weight_decay: in the place of ``TrainingConfig.weight_decay``; None is that.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    FORM: ClassVar[str] = "prefix:factor or prefix:factor:weight_decay"

    prefix: str
    factor: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "factor")
        if self.weight_decay is not None:
            check_at_least(self, 0, "weight_decay")

    @classmethod
    def parse(cls, text: str) -> ParameterGroup:
        """The inverse of ``str``, "text.embed:0.1" or "text.embed:1:0"; a ValueError where it is neither."""
        prefix, factor, *decay = text.split(":")
        decays = [None if each == NONE else decimal_number(each) for each in decay]
        if len(decays) > 1:
            raise ValueError(f"must be {cls.FORM}, not {text!r}")
        return cls(prefix, decimal_number(factor), *decays)

    def __str__(self) -> str:
        decay = [] if self.weight_decay is None else [self.weight_decay]
        return ":".join([self.prefix, *(repr(number) for number in (self.factor, *decay))])

    def has(self, name: str) -> bool:
        """Whether a parameter of this name belongs to the group."""
        return not self.prefix or f"{name}.".startswith(f"{self.prefix}.")


@dataclass(frozen=True)
class TrainingConfig(Config):
    """How to train; the defaults are SCAN's on Flickr30K (Appendix A).

    Attributes:
        epochs: times through the training captions.
        decay: how the learning rate falls: "step", after ``decay_epochs``, or "cosine", over all steps after the
            warm-up, from ``learning_rate`` to nothing (Loshchilov and Hutter, SGDR, 2017, eq. 5, without restarts).
        decay_epochs: epochs after each of which the learning rate is divided by 10, in ascending order; may be none.
            With "cosine" they make no difference.
        batch_size: captions a batch, among which negatives are sought.
        accumulate: batches whose gradients are added up before a step, as the losses of one large batch would be; no
            memory is needed for more than one of them, but no batch sees negatives of another. The last step of an
            epoch may have fewer.
        encode_chunk: items encoded at a time where a batch's activations are too many for the memory: all are encoded
            twice, and gradients are the same up to rounding, but for batch normalisation, which takes its statistics
            from these items alone. None encodes a batch at once.
        optimizer: "adam"; "adamw" (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019); or "adadelta"
            (SMAN), which averages with a decay of 0.9.
        learning_rate: the optimizer's.
        warmup_steps: steps in which the learning rate rises, by equal parts, from nothing to what it is without.
        weight_decay: the share of every weight that is added to its gradient; with "adamw" that by which a weight is
            made smaller, times the learning rate. There it spares biases and gains of norms (parameters of one
            dimension), as is the custom, unless one of ``parameter_groups`` says it for them.
        parameter_groups: parameters with a learning rate or weight decay of their own; each is of the first group that
            has it. As text "image.backbone:0.1,text.embed:1:0".
        gradient_norm: gradients are scaled down to this L2 norm where they exceed it; None leaves them as they are.
        amp: whether encoders and scores compute in bfloat16 where torch.autocast holds that to be safe. Weights, their
            gradients and the optimizer stay in float32, and so does validation.
        tf32: whether a GPU makes products of float32 in TF32, whose numbers have 10 binary digits behind the first,
            in validation, too. Elsewhere it makes no difference.
        same_image_negatives: whether another caption of a caption's image, where a batch has one, is a negative, as any
            other caption is. It does describe the image, so by default it is none. The published code of SCAN and VSE++
            makes no such exception: this is how to have its loss. On the papers' data few batches have two captions of
            one image.
        select_by: what makes an epoch the best, in retrieval on the development set: "rsum", the sum of R@1, R@5 and
            R@10 both ways, as the published code of SCAN and VSE++ has it, or "r1", the sum of R@1 both ways.
        patience: training ends after so many epochs without one better than the best; None goes through them all.
        seed: of the order of the captions and of whatever a model draws at random while it is trained.
        log_every: steps between two lines of the log.
        checkpoint_every: steps between two checkpoints; there is one at the end of each epoch besides.

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    epochs: int = option(30, "Passes over the training captions.")
    decay: Literal["step", "cosine"] = option("step", "How the rate falls: at decay_epochs, or as a cosine to nothing.")
    decay_epochs: tuple[int, ...] = option((15,), "Epochs before the rate is divided by 10, ascending: 10,20.")
    batch_size: int = option(128, "Captions a batch.")
    accumulate: int = option(1, "Batches whose gradients are added up for a step.")
    encode_chunk: int | None = option(
        None, "Encode so many items at a time, twice, to save memory; by default all. Batch norm sees these alone."
    )
    optimizer: Literal["adam", "adamw", "adadelta"] = option("adam", "What takes the steps.")
    learning_rate: float = option(2e-4, "The optimizer's.")
    warmup_steps: int = option(0, "Steps in which the rate rises to that.")
    weight_decay: float = option(0.0, "Share of every weight that is added to its gradient; of adamw taken from it.")
    parameter_groups: tuple[ParameterGroup, ...] = option(
        (), f"Parameters with a rate or decay of their own: {ParameterGroup.FORM}, several between commas."
    )
    gradient_norm: float | None = option(
        2.0, "Scale larger gradients down to this norm; none keeps them.", most=LARGEST_FLOAT32
    )
    amp: bool = option(False, "Compute in bfloat16 where that is safe.")
    tf32: bool = option(False, "On a GPU make products of float32 in TF32: faster, by 10 binary digits.")
    same_image_negatives: bool = option(False, "Let captions of one image be each other's negatives.")
    select_by: Literal["rsum", "r1"] = option("rsum", "What is highest in the best epoch: rsum, or R@1 both ways.")
    patience: int | None = option(None, "End after so many epochs without a better one; by default never.")
    seed: int = 0
    log_every: int = option(10, "Steps between two lines of the log.")
    checkpoint_every: int = option(500, "Steps between two checkpoints, beside one an epoch.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "epochs", "batch_size", "accumulate", "log_every", "checkpoint_every")
        check_positive(self, "learning_rate", *([] if self.gradient_norm is None else ["gradient_norm"]))
        check_at_least(self, 0, "seed", "weight_decay", "warmup_steps")
        for name in ("patience", "encode_chunk"):
            if getattr(self, name) is not None:
                check_at_least(self, 1, name)
        for earlier, later in zip((0, *self.decay_epochs), self.decay_epochs, strict=False):
            if later <= earlier:
                raise ValueError(f"decay_epochs must ascend from 1 on, not {list(self.decay_epochs)}")
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed must be at most {LARGEST_SEED}, not {self.seed}")

    def learning_rate_of(self, step: int, epoch_steps: int) -> float:
        """The learning rate of a step, counted from 0 from the beginning of the training, whose epochs have so many."""
        rate = self.learning_rate
        if self.decay == "step":
            rate /= 10 ** sum(step // epoch_steps >= epoch for epoch in self.decay_epochs)
        if step < self.warmup_steps:
            return rate * (step + 1) / self.warmup_steps
        if self.decay == "cosine":
            done = (step - self.warmup_steps) / (self.epochs * epoch_steps - self.warmup_steps)
            rate *= (1 + math.cos(math.pi * done)) / 2
        return rate

    def steps_of(self, captions: int) -> int:
        """The steps of an epoch over so many captions."""
        batches = -(-captions // self.batch_size)
        return -(-batches // self.accumulate)
