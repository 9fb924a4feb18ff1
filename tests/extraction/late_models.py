"""Tiny models of late interaction, randomly initialised and saved: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.extraction.models import PATCH, SIDE, edit_json, make_tokenizer, save_bert

_TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": SIDE,
    "patch_size": PATCH,
}
DIM = 8


def save_late_model(kind: str, directory: Path) -> Path:
    """A model of this kind, in a folder of its name."""
    torch.manual_seed(0)
    folder = directory / kind
    {"colbert": _colbert, "pylate": _pylate, "colpali": _colpali, "colqwen": _colqwen, "tiles": _tiles}[kind](folder)
    return folder


def _colbert(folder: Path) -> None:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion: Any = {"strategy": "fixed", "token": "[UNK]", "attend": False, "length": 12}
    bert = Transformer(str(save_bert(folder.parent / "backbone")), document_length=10, query_expansion=expansion)
    same = torch.nn.Identity()
    named: Any = {"module_input_name": "token_embeddings"}
    modules = [
        bert,
        Dense(16, DIM, bias=False, activation_function=same, **named),
        MultiVectorMask(["of"]),
        Normalize(**named),
    ]
    prompts = {"query": "red ", "document": "blue "}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save_pretrained(str(folder))


def _pylate(folder: Path) -> None:
    """As PyLate writes it: the settings of queries and documents lie beside one another, and two modules are left."""
    _colbert(folder)
    old = {"model_type": "ColBERT", "prompts": {}, "query_prefix": "red ", "document_prefix": "blue "}
    edit_json(folder / "config_sentence_transformers.json", **old, query_length=9, document_length=10)
    edit_json(folder / "sentence_bert_config.json", query_expansion=None, document_length=None)
    edit_json(folder / "tokenizer_config.json", mask_token="[UNK]")
    modules = folder / "modules.json"
    modules.write_text(json.dumps(json.loads(modules.read_text())[:2]))


def _colpali(folder: Path) -> None:
    import transformers as hf

    pictures = hf.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}, image_seq_length=(SIDE // PATCH) ** 2)
    processor = hf.ColPaliProcessor(image_processor=pictures, tokenizer=_tokenizer("<image>"))
    language = {"model_type": "gemma", **_TEXT, "head_dim": 8, "vocab_size": 2048}
    backbone = hf.PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **_VISION},
        text_config=language,
        image_token_index=processor.image_token_id,
        projection_dim=16,
        hidden_size=16,
    )
    _save(folder, hf.ColPaliForRetrieval(hf.ColPaliConfig(vlm_config=backbone, embedding_dim=DIM)), processor)


def _colqwen(folder: Path) -> None:
    import transformers as hf

    marks = ["<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer = _tokenizer("<|image_pad|>", *marks)
    pixels = {"shortest_edge": SIDE**2, "longest_edge": 4 * SIDE**2}
    pictures = hf.Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, size=pixels)
    rotary = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    of = tokenizer.convert_tokens_to_ids
    backbone = hf.Qwen2VLConfig(
        text_config={**_TEXT, "vocab_size": 64, "rope_parameters": rotary, "bos_token_id": 2, "eos_token_id": 3},
        vision_config={
            "depth": 1,
            "embed_dim": 16,
            "hidden_size": 16,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": PATCH,
            "spatial_merge_size": 2,
        },
        image_token_id=of("<|image_pad|>"),
        video_token_id=of("<|video_pad|>"),
        vision_start_token_id=of("<|vision_start|>"),
        vision_end_token_id=of("<|vision_end|>"),
    )
    model = hf.ColQwen2ForRetrieval(hf.ColQwen2Config(vlm_config=backbone, embedding_dim=DIM))
    _save(folder, model, hf.ColQwen2Processor(image_processor=pictures, tokenizer=tokenizer))


def _tiles(folder: Path) -> None:
    """ColModernVBert, whose processor cuts pictures."""
    import transformers as hf

    tokenizer = _tokenizer("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
    pictures = hf.Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": SIDE})
    processor = hf.ColModernVBertProcessor(image_processor=pictures, tokenizer=tokenizer, image_seq_len=4)
    numbers = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    backbone = hf.ModernVBertConfig(
        text_config={**{key: _TEXT[key] for key in _TEXT if "value" not in key}, "vocab_size": 64, **numbers},
        vision_config=_VISION,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pixel_shuffle_factor=2,
    )
    config = hf.ColModernVBertConfig(vlm_config=backbone, embedding_dim=DIM)
    _save(folder, hf.ColModernVBertForRetrieval(config), processor)


def _tokenizer(image: str, *marks: str) -> Any:
    special = {"bos_token": "[CLS]", "eos_token": "[SEP]", "extra_special_tokens": {"image_token": image}}
    return make_tokenizer("[CLS]", "[SEP]", **special, additional_special_tokens=list(marks), model_max_length=200)


def _save(folder: Path, *parts: Any) -> None:
    for part in parts:
        part.save_pretrained(folder)
