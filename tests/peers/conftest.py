"""What tests with other packages share: a tiny model of random weights, nothing downloaded. `make peers` runs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.torchvision import let_torchvision_import
from tests.peers.training import DOCUMENTS, NEGATIVES, QUERIES

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

let_torchvision_import()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two small layers and a word-piece tokenizer of the texts' words, saved."""
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("tiny")
    words = sorted({word for text in [*QUERIES, *DOCUMENTS, *NEGATIVES] for word in text.split()})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **sizes,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
