"""Region features that other programs wrote, as a split of a data directory."""

from crossret.compat.features.arrays import ArrayFile
from crossret.compat.features.bottom_up import BottomUpFiles
from crossret.compat.features.folder import Folder
from crossret.compat.features.hdf5 import Hdf5File
from crossret.compat.features.opening import open_source, takes_ids
from crossret.compat.features.splits import Imported, import_features
from crossret.compat.features.tensors import TensorFile

__all__ = [
    "ArrayFile",
    "BottomUpFiles",
    "Folder",
    "Hdf5File",
    "Imported",
    "TensorFile",
    "import_features",
    "open_source",
    "takes_ids",
]
