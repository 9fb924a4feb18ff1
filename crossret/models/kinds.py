"""The models, by the name that their files carry."""

from __future__ import annotations

from typing import Any

from crossret.hyperparameters import MODEL_CONFIGS, ModelConfig
from crossret.models.han import Han
from crossret.models.laps import Laps
from crossret.models.mhsan import Mhsan
from crossret.models.oan import Oan
from crossret.models.scan import Scan
from crossret.models.sman import Sman
from crossret.models.vse import Vse

MODELS: dict[str, tuple[type[ModelConfig], Any]] = {
    model.kind: (MODEL_CONFIGS[model.kind], model) for model in (Scan, Sman, Han, Mhsan, Oan, Vse, Laps)
}
