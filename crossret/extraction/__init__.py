"""From photographs and captions to data: tokens of pretrained encoders, in the precomputed-feature format."""

from crossret.extraction.choosing import load_picture_encoder, load_text_encoder
from crossret.extraction.extracting import Extracted, Options, extract_pictures
from crossret.extraction.maps import MapEncoder
from crossret.extraction.protocol import PictureEncoder, TextEncoder, Tokens
from crossret.extraction.sources import read_captions_of_pictures
from crossret.extraction.split import PictureSplit

__all__ = [
    "Extracted",
    "MapEncoder",
    "Options",
    "PictureEncoder",
    "PictureSplit",
    "TextEncoder",
    "Tokens",
    "extract_pictures",
    "load_picture_encoder",
    "load_text_encoder",
    "read_captions_of_pictures",
]
