"""The models: training, evaluation, search and pictures know them by ``Matcher`` alone."""

from crossret.hyperparameters import (
    HanConfig,
    LapsConfig,
    MhsanConfig,
    OanConfig,
    ScanConfig,
    SmanConfig,
    VseConfig,
)
from crossret.models.checkpoints import load_model, save_model
from crossret.models.encoded import Encoded
from crossret.models.han import Han
from crossret.models.kinds import MODELS
from crossret.models.laps import Laps
from crossret.models.mhsan import Mhsan
from crossret.models.oan import Oan
from crossret.models.protocol import Matcher
from crossret.models.scan import Scan
from crossret.models.sman import Sman
from crossret.models.vse import Vse

__all__ = [
    "MODELS",
    "Encoded",
    "Han",
    "HanConfig",
    "Laps",
    "LapsConfig",
    "Matcher",
    "Mhsan",
    "MhsanConfig",
    "Oan",
    "OanConfig",
    "Scan",
    "ScanConfig",
    "Sman",
    "SmanConfig",
    "Vse",
    "VseConfig",
    "load_model",
    "save_model",
]
