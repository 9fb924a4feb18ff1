"""Text encoders of transformers: the text towers of CLIP and SigLIP, BERT and whatever else AutoModel loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from crossret.extraction.grids import device_of
from crossret.extraction.hugging_face import load_module, load_tokenizer, plain_settings
from crossret.extraction.protocol import Tokens

_FIXED = ("siglip", "siglip_text_model", "siglip2", "siglip2_text_model")
"""Trained on captions that are padded to one length, with the padding attended to."""
_LONGEST = 2**16  # tokens: tokenizers say a number far above for "any"


class HuggingFaceTexts:
    """The last hidden state of a text encoder, one token a piece of a word.

    Left out are padding and what the tokenizer adds to every text: [CLS] and [SEP] of BERT, <|startoftext|> and
    <|endoftext|> of CLIP, the end token of SigLIP. Longer texts are cut where the model ends. SigLIP reads texts padded
    to its longest and without a mask, as it was trained.

    Args:
        name: a folder, or a model of the Hub.
        model_type: as config.json has it.

    Attributes:
        name, dim, module: as those of ``TextEncoder``.
        longest: tokens of a text that the model reads, with those that the tokenizer adds.

    Raises:
        ValueError: it cannot be loaded, or is no encoder of texts; names it.
    """

    def __init__(self, name: str, model_type: str) -> None:
        self.name = name
        self.tokenizer = load_tokenizer(name)
        module: Any = load_module(name, "text_model")
        if getattr(module.config, "is_encoder_decoder", False):
            module = module.get_encoder()
        if getattr(module, "main_input_name", "input_ids") != "input_ids":
            raise ValueError(f"{name}: reads {module.main_input_name}, and is no encoder of texts")
        self.module: nn.Module = module
        self._config: Any = module.config
        self.dim: int = self._config.hidden_size
        self._fixed = model_type in _FIXED
        places = getattr(self._config, "max_position_embeddings", None) or _LONGEST
        if model_type in ("roberta", "xlm-roberta", "camembert"):
            places -= self._config.pad_token_id + 1  # their positions begin behind it
        self.longest = min(self.tokenizer.model_max_length, places, _LONGEST)
        if self.tokenizer.pad_token is None:
            raise ValueError(f"{name}: its tokenizer has no token for padding")

    def settings(self) -> dict[str, Any]:
        return {
            "tokenizer": type(self.tokenizer).__name__,
            "longest": self.longest,
            "config": plain_settings(self._config.to_dict()),
        }

    def encode_texts(self, texts: Sequence[str]) -> Tokens:
        made = self.tokenizer(
            list(texts),
            padding="max_length" if self._fixed else "longest",
            max_length=self.longest,
            truncation=True,
            return_special_tokens_mask=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        own = made["attention_mask"].bool() & ~made["special_tokens_mask"].bool()
        lengths = own.sum(1).tolist()
        if 0 in lengths:
            raise ValueError(f"{self.name}: its tokenizer makes nothing of the text {texts[lengths.index(0)]!r}")
        device = device_of(self.module)
        inputs: dict[str, Tensor] = {"input_ids": made["input_ids"].to(device)}
        if not self._fixed:
            inputs["attention_mask"] = made["attention_mask"].to(device)
        hidden: Tensor = self.module(**inputs).last_hidden_state
        return Tokens(hidden[own.to(device)], lengths)
