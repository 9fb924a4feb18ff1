"""crossret: image-text matching by attention between regions and words."""

from __future__ import annotations

from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossret.losses import DiversityLoss as DiversityLoss
    from crossret.losses import IntraPairLoss as IntraPairLoss
    from crossret.losses import StructurePreservingLoss as StructurePreservingLoss
    from crossret.losses import TripletLoss as TripletLoss
    from crossret.models import Han as Han
    from crossret.models import Laps as Laps
    from crossret.models import Mhsan as Mhsan
    from crossret.models import Oan as Oan
    from crossret.models import Scan as Scan
    from crossret.models import Sman as Sman
    from crossret.models import Vse as Vse
    from crossret.models import load_model as load_model
    from crossret.models import save_model as save_model
    from crossret.picture_index import PictureIndex as PictureIndex
    from crossret.picture_index import load_index as load_index
    from crossret.retriever import Retriever as Retriever
    from crossret.retriever import load as load
    from crossret.scorers import CrossAttentionScorer as CrossAttentionScorer
    from crossret.scorers import EnsembleScorer as EnsembleScorer
    from crossret.scorers import SumMaxScorer as SumMaxScorer

try:
    __version__ = metadata.version("crossret")
except metadata.PackageNotFoundError:  # a checkout that is not installed: its project file has it
    _project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    __version__ = _project.partition('\nversion = "')[2].partition('"')[0]

# Public names by their module, which is imported when one is asked for: torch takes a second.
_ROOMS = {
    "data": (),
    "evaluation": (),
    "losses": ("DiversityLoss", "IntraPairLoss", "StructurePreservingLoss", "TripletLoss"),
    "models": ("Han", "Laps", "Mhsan", "Oan", "Scan", "Sman", "Vse", "load_model", "save_model"),
    "picture_index": ("PictureIndex", "load_index"),
    "retriever": ("Retriever", "load"),
    "scorers": ("CrossAttentionScorer", "EnsembleScorer", "SumMaxScorer"),
    "training": (),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"crossret.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'crossret' has no attribute {name!r}")
    return getattr(import_module(f"crossret.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
