"""The models, by the name that their files carry."""

from crossret.models.protocol import Matcher
from crossret.models.scan import Scan, ScanConfig

MODELS = {Scan.kind: (ScanConfig, Scan)}

__all__ = ["MODELS", "Matcher", "Scan", "ScanConfig"]
