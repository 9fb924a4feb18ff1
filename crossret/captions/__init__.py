"""Files of captions: what tells captions of images is read to one form, and written as splits of a data directory."""
