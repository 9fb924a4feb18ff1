"""Tiny encoders of every family, randomly initialised and saved with their processors: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "a", "small", "large", "red", "green", "blue", "circle", "square", "triangle", "left", "right", "of", "above",
    "below", "the", "and", "is",
]  # fmt: skip
SIDE, PATCH, DIM = 32, 8, 16
_LAYERS = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_VISION = {**_LAYERS, "image_size": SIDE, "patch_size": PATCH}
_TEXT = {**_LAYERS, "vocab_size": 64, "max_position_embeddings": 24}


def save_pictures_model(kind: str, directory: Path) -> Path:
    """A vision model of this kind, in a folder of its name."""
    import transformers as hf

    square = {"height": SIDE, "width": SIDE}
    whole: dict[str, Any] = {"size": square}
    shorter: dict[str, Any] = {"size": {"shortest_edge": 36}, "crop_size": square, "do_center_crop": True}
    plain: dict[str, tuple[Any, Any]] = {
        "clip_vision_model": (hf.CLIPVisionConfig(**_VISION), hf.CLIPImageProcessorPil(**shorter)),
        "siglip_vision_model": (hf.SiglipVisionConfig(**_VISION), hf.SiglipImageProcessorPil(**whole)),
        "vit": (hf.ViTConfig(**_VISION), hf.ViTImageProcessorPil(**whole)),
        "dinov2": (hf.Dinov2Config(**_VISION), hf.BitImageProcessorPil(**shorter)),
        "dinov2_with_registers": (
            hf.Dinov2WithRegistersConfig(**_VISION, num_register_tokens=3),
            hf.BitImageProcessorPil(**{**shorter, "do_center_crop": False, "size": {"shortest_edge": SIDE}}),
        ),
        # Its own processor needs torchvision.
        "dinov3_vit": (hf.DINOv3ViTConfig(**_VISION, num_register_tokens=2), hf.ViTImageProcessorPil(**whole)),
        "swin": (hf.SwinConfig(**_SWIN), hf.ViTImageProcessorPil(size={"height": 30, "width": 44})),
        "swinv2": (hf.Swinv2Config(**_SWIN), hf.ViTImageProcessorPil(**whole)),
        "resnet": (
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, DIM], depths=[1, 1], layer_type="basic"),
            hf.ViTImageProcessorPil(size={"height": 30, "width": 44}),
        ),
        "convnext": (
            hf.ConvNextConfig(patch_size=4, hidden_sizes=[8, DIM], depths=[1, 1], num_stages=2),
            hf.ConvNextImageProcessorPil(size={"shortest_edge": SIDE}),
        ),
        "siglip2_vision_model": (
            hf.Siglip2VisionConfig(**_LAYERS, patch_size=PATCH, num_patches=16),
            hf.Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=24),
        ),
    }
    config, processor = plain[kind]
    return _save(config, directory / kind, processor)


_SWIN: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": 4,
    "embed_dim": DIM // 2,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 4,
}
GRIDS = [
    "clip_vision_model", "siglip_vision_model", "vit", "dinov2", "dinov2_with_registers", "dinov3_vit", "swin",
    "swinv2", "resnet", "convnext",
]  # fmt: skip
PICTURE_MODELS = [*GRIDS, "siglip2_vision_model"]


def save_two_towers(kind: str, directory: Path) -> Path:
    """CLIP or SigLIP with both towers, a processor of pictures and a tokenizer."""
    import transformers as hf

    size = {"height": SIDE, "width": SIDE}
    if kind == "clip":
        config: Any = hf.CLIPConfig(text_config={**_TEXT, "eos_token_id": 3}, vision_config=_VISION)
        return _save(
            config,
            directory / kind,
            hf.CLIPImageProcessorPil(size=size, crop_size=size),
            make_tokenizer("[CLS]", "[SEP]"),
        )
    config = hf.SiglipConfig(text_config=_TEXT, vision_config=_VISION)
    return _save(config, directory / kind, hf.SiglipImageProcessorPil(size=size), make_tokenizer(None, "[SEP]"))


def save_bert(directory: Path) -> Path:
    """BERT with a tokenizer of few words."""
    import transformers as hf

    return _save(hf.BertConfig(**_TEXT), directory / "bert", make_tokenizer("[CLS]", "[SEP]"))


def save_texts_model(kind: str, directory: Path) -> Path:
    """RoBERTa, whose positions begin behind that of padding, or T5, of which the encoder reads texts."""
    import transformers as hf

    if kind == "roberta":
        config: Any = hf.RobertaConfig(**{**_TEXT, "max_position_embeddings": 12}, pad_token_id=0)
        return _save(config, directory / kind, make_tokenizer("[CLS]", "[SEP]"))
    config = hf.T5Config(vocab_size=64, d_model=DIM, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0)
    return _save(config, directory / kind, make_tokenizer(None, "[SEP]"))


def _save(config: Any, directory: Path, *others: Any) -> Path:
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    with torch.no_grad():  # some families begin with zeros; little, so that a token is mostly of its own patch
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    for part in (model, *others):
        part.save_pretrained(directory)
    return directory


def make_tokenizer(begin: str | None, end: str, **settings: Any) -> Any:
    """Words of a fixed list, lower case, between what is added to every text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    numbers = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    template = " ".join(filter(None, [begin, "$A", end]))
    added = [(token, numbers[token]) for token in (begin, end) if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=added)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{"model_max_length": 20, **names, **settings})


def edit_json(path: Path, **values: Any) -> None:
    """Change values of a JSON object in a file; None takes one away."""
    contents = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in contents.items() if value is not None}))
