"""Data sets of region features and captions, their vocabulary and batches, and rendered scenes to learn from."""

from crossret.data.batches import Batch, caption_batches, pad_tokens
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.hugging_face import from_datasets
from crossret.data.memory import InMemoryCorpus
from crossret.data.precomputed import PrecomputedDataset
from crossret.data.scenes.render import render_scenes
from crossret.data.vocabulary import Vocabulary, tokenize

__all__ = [
    "Batch",
    "InMemoryCorpus",
    "PrecomputedCorpus",
    "PrecomputedDataset",
    "Vocabulary",
    "caption_batches",
    "from_datasets",
    "pad_tokens",
    "render_scenes",
    "tokenize",
]
