"""Training of any model that scores images with captions."""

from crossret.hyperparameters import ParameterGroup, TrainingConfig
from crossret.models.checkpoints import BEST, load_model, save_model
from crossret.training.callbacks import LOG, Callback, TrainingResult
from crossret.training.inputs import PartialStatistics
from crossret.training.loop import CHECKPOINT, ResumedElsewhere, train

__all__ = [
    "BEST",
    "CHECKPOINT",
    "LOG",
    "Callback",
    "ParameterGroup",
    "PartialStatistics",
    "ResumedElsewhere",
    "TrainingConfig",
    "TrainingResult",
    "load_model",
    "save_model",
    "train",
]
