"""Hyper-parameters of every model and of training. Imports no torch, so that --help can list them at once."""

from crossret.hyperparameters.han import HanConfig
from crossret.hyperparameters.laps import LapsConfig
from crossret.hyperparameters.mhsan import MhsanConfig
from crossret.hyperparameters.model import ModelConfig
from crossret.hyperparameters.oan import OanConfig
from crossret.hyperparameters.scan import ScanConfig
from crossret.hyperparameters.sman import SmanConfig
from crossret.hyperparameters.training import ParameterGroup, TrainingConfig
from crossret.hyperparameters.vse import VseConfig

MODEL_CONFIGS: dict[str, type[ModelConfig]] = {
    config.kind: config for config in (ScanConfig, SmanConfig, HanConfig, MhsanConfig, OanConfig, VseConfig, LapsConfig)
}

__all__ = [
    "MODEL_CONFIGS",
    "HanConfig",
    "LapsConfig",
    "MhsanConfig",
    "ModelConfig",
    "OanConfig",
    "ParameterGroup",
    "ScanConfig",
    "SmanConfig",
    "TrainingConfig",
    "VseConfig",
]
