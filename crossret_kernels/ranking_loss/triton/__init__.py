"""Backend "triton" of the ranking losses, as `registration.define_loss` takes it."""

from crossret_kernels.ranking_loss.triton.backward import gradient
from crossret_kernels.ranking_loss.triton.forward import loss

__all__ = ["gradient", "loss"]
