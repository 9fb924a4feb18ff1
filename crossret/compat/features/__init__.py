"""Region features that other programs wrote, as a split of a data directory."""

from crossret.compat.features.arrays import ArrayFile
from crossret.compat.features.bottom_up import BottomUpFiles
from crossret.compat.features.hdf5 import Hdf5File
from crossret.compat.features.splits import Imported, import_features

__all__ = ["ArrayFile", "BottomUpFiles", "Hdf5File", "Imported", "import_features"]
