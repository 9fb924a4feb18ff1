"""Pictures of folders, encoded by a model and found by text."""

from crossret.picture_index.index import PictureIndex, load_index

__all__ = ["PictureIndex", "load_index"]
