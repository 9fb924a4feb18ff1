"""Text encoders of transformers: the text towers of CLIP and SigLIP, BERT and whatever else AutoModel loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crossret.extraction.grids import device_of
from crossret.extraction.hugging_face import files_of_texts, load_module, load_tokenizer, plain_settings
from crossret.extraction.protocol import PreparedText, TextEncoder, Tokens

_FIXED = ("siglip", "siglip_text_model", "siglip2", "siglip2_text_model")
"""Trained on captions that are padded to one length, with the padding attended to."""
_LONGEST = 2**16  # tokens: tokenizers say a number far above for "any"


class HuggingFaceTexts(TextEncoder):
    """The last hidden state of a text encoder, one token a piece of a word.

    Left out are padding and what the tokenizer adds to every text: [CLS] and [SEP] of BERT, <|startoftext|> and
    <|endoftext|> of CLIP, the end token of SigLIP. Longer texts are cut where the model ends. SigLIP reads texts padded
    to its longest and without a mask, as it was trained.

    Args:
        name: a folder, or a model of the Hub.
        config: contents of config.json.
        weights: whether to load them, not to have random ones.

    Attributes:
        name, dim, module: as those of ``TextEncoder``.
        longest: tokens of a text that the model reads, with those that the tokenizer adds.

    Raises:
        ValueError: it cannot be loaded, or is no encoder of texts; names it.
    """

    def __init__(self, name: str, config: Mapping[str, Any], *, weights: bool = True) -> None:
        self.name = name
        self.tokenizer = load_tokenizer(name)
        module: Any = load_module(name, "text_model", weights=weights)
        self._whole = config  # the whole model's, by which an encoder that is a part of it is known again
        if getattr(module.config, "is_encoder_decoder", False):
            module = module.get_encoder()
        if getattr(module, "main_input_name", "input_ids") != "input_ids":
            raise ValueError(f"{name}: reads {module.main_input_name}, and is no encoder of texts")
        self.module: nn.Module = module
        self._config: Any = module.config
        self.dim: int = self._config.hidden_size
        self._fixed = config.get("model_type") in _FIXED
        places = getattr(self._config, "max_position_embeddings", None) or _LONGEST
        if config.get("model_type") in ("roberta", "xlm-roberta", "camembert"):
            places -= self._config.pad_token_id + 1  # their positions begin behind it
        self.longest = min(self.tokenizer.model_max_length, places, _LONGEST)
        if self.tokenizer.pad_token is None:
            raise ValueError(f"{name}: its tokenizer has no token for padding")

    def settings(self) -> dict[str, Any]:
        config = {name: value for name, value in self._config.to_dict().items() if name != "_name_or_path"}
        return {
            "tokenizer": type(self.tokenizer).__name__,
            "longest": self.longest,
            "config": plain_settings(config),
        }

    def files(self) -> dict[str, bytes]:
        return files_of_texts(self._whole, self.tokenizer)

    def prepare(self, text: str) -> PreparedText:
        made = self.tokenizer(text, max_length=self.longest, truncation=True, return_special_tokens_mask=True)
        own = ~np.array(made["special_tokens_mask"], np.bool_)
        if not own.any():
            raise ValueError(f"{self.name}: its tokenizer makes nothing of the text {text!r}")
        spans = np.zeros((len(own), 2), np.int32)
        if made.is_fast:
            words, offsets = made.word_ids(), made.encodings[0].offsets
            for word, places in groupby(range(len(words)), key=words.__getitem__):
                if word is not None:
                    first, *_, last = [*places] * 2
                    spans[first : last + 1] = offsets[first][0], offsets[last][1]
        return PreparedText(np.array(made["input_ids"], np.int64), own, spans[own])

    def encode(self, prepared: Sequence[PreparedText]) -> Tokens:
        width = self.longest if self._fixed else max(len(text.ids) for text in prepared)
        ids = np.full((len(prepared), width), self.tokenizer.pad_token_id, np.int64)
        own, there = np.zeros((2, *ids.shape), np.bool_)
        for row, text in enumerate(prepared):
            n = len(text.ids)
            place = slice(width - n, width) if self.tokenizer.padding_side == "left" else slice(n)
            ids[row, place], own[row, place], there[row, place] = text.ids, text.own, True
        device = device_of(self.module)
        inputs: dict[str, Tensor] = {"input_ids": torch.from_numpy(ids).to(device)}
        if not self._fixed:
            inputs["attention_mask"] = torch.from_numpy(there.astype(np.int64)).to(device)
        hidden: Tensor = self.module(**inputs).last_hidden_state
        spans = np.concatenate([text.spans for text in prepared])
        return Tokens(hidden[torch.from_numpy(own).to(device)], own.sum(1).tolist(), spans=spans)

    def encode_texts(self, texts: Sequence[str]) -> Tokens:
        return self.encode([self.prepare(text) for text in texts])
