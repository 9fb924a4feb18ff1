"""The models, by the name that their files carry."""

from __future__ import annotations

from typing import Any

from crossret.hyperparameters import (
    HanConfig,
    MhsanConfig,
    ModelConfig,
    OanConfig,
    ScanConfig,
    SmanConfig,
    VseConfig,
)
from crossret.models.han import Han
from crossret.models.mhsan import Mhsan
from crossret.models.oan import Oan
from crossret.models.scan import Scan
from crossret.models.sman import Sman
from crossret.models.vse import Vse

MODELS: dict[str, tuple[type[ModelConfig], Any]] = {
    Scan.kind: (ScanConfig, Scan),
    Sman.kind: (SmanConfig, Sman),
    Han.kind: (HanConfig, Han),
    Mhsan.kind: (MhsanConfig, Mhsan),
    Oan.kind: (OanConfig, Oan),
    Vse.kind: (VseConfig, Vse),
}
