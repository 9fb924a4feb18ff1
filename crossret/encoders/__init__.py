"""Encoders of regions and words into the space where they are compared, one file each."""

from crossret.encoders.linear import xavier_linear
from crossret.encoders.ngrams import NgramEncoder
from crossret.encoders.normalize import EPSILON, l2_normalize
from crossret.encoders.pretrained import PictureTokens, TextTokens, identity_of
from crossret.encoders.regions import RegionEncoder
from crossret.encoders.sru import SruEncoder
from crossret.encoders.text_tokens import TokenEncoder
from crossret.encoders.tokens import check_tokens, first_words
from crossret.encoders.transformer import TransformerEncoder
from crossret.encoders.words import WordEncoder

__all__ = [
    "EPSILON",
    "NgramEncoder",
    "PictureTokens",
    "RegionEncoder",
    "SruEncoder",
    "TextTokens",
    "TokenEncoder",
    "TransformerEncoder",
    "WordEncoder",
    "check_tokens",
    "first_words",
    "identity_of",
    "l2_normalize",
    "xavier_linear",
]
