"""crossret: image-text matching by attention between regions and words."""

from importlib import metadata

__version__ = metadata.version("crossret")
