"""crossret: image-text matching by attention between regions and words."""
