"""Training of any model that scores images with captions."""

from crossret.hyperparameters import TrainingConfig
from crossret.models.checkpoints import BEST, load_model, save_model
from crossret.training.loop import CHECKPOINT, ResumedElsewhere, TrainingResult, train
from crossret.training.records import LOG

__all__ = [
    "BEST",
    "CHECKPOINT",
    "LOG",
    "ResumedElsewhere",
    "TrainingConfig",
    "TrainingResult",
    "load_model",
    "save_model",
    "train",
]
