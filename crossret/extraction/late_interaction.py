"""Late-interaction encoders of sentence-transformers: ColBERT and PyLate of texts, ColPali and ColQwen of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn

from crossret.extraction.grids import device_of, on_cells
from crossret.extraction.hugging_face import (
    check_installed,
    check_whole,
    find_file,
    named,
    plain_settings,
    quiet,
    read_json,
)
from crossret.extraction.placement import Placement, check_shape, placement_of
from crossret.extraction.protocol import PictureEncoder, TextEncoder, Tokens
from crossret.extraction.tiles import cuts_tiles, tile_boxes, tiles_of
from crossret.files import json as files_json

_SAVED = "config_sentence_transformers.json"
_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}  # encode_query's and encode_document's
_KINDS = ("MultiVectorEncoder", "ColBERT")  # classes of sentence-transformers, and of PyLate before it


def is_late_interaction(name: str) -> bool:
    """Whether a model is one that ``sentence_transformers.MultiVectorEncoder`` loads, of a folder or of the Hub.

    Raises:
        ValueError: transformers is missing; names the extra.
    """
    check_installed("transformers", "encoders", f"the encoder {name}")
    if read_json(name, _SAVED).get("model_type") in _KINDS:
        return True
    architectures = read_json(name, "config.json").get("architectures") or []
    return any(kind == "HF_ColBERT" or kind.endswith("ForRetrieval") for kind in architectures)


class LateInteractionTexts(TextEncoder):
    """Vectors of texts by which MaxSim scores them: those that the model's mask keeps, with its prompts.

    Captions are queries: they have the model's prompt for queries and its expansion tokens, which are scored, too.
    Documents have their own prompt and length, and lack the words of the model's skip list.

    Args:
        name: a folder, or a model of the Hub.
        task: role of the texts.
        module: the model, where it is loaded already.

    Attributes:
        name, dim, module: as those of ``TextEncoder``.

    Raises:
        ValueError: it cannot be loaded; names it.
    """

    def __init__(
        self, name: str, task: Literal["query", "document"] = "query", *, module: nn.Module | None = None
    ) -> None:
        self.name = name
        self._task = task
        self.module: nn.Module = _load(name) if module is None else module
        self.dim: int = _dim_of(name, self.module)

    def settings(self) -> dict[str, Any]:
        return {"task": self._task, **_settings(self.module)}

    def encode_texts(self, texts: Sequence[str]) -> Tokens:
        return self._encoded(texts)[0]

    def encode_and_spell(self, texts: Sequence[str]) -> tuple[Tokens, list[list[str]]]:
        """Tokens as by ``encode_texts``, and for each text the spelling of the token that each vector is of.

        Raises:
            ValueError: as ``encode_texts``, or the model pools its vectors, which are then of no tokens.
        """
        tokens, features, kept = self._encoded(texts)
        if features["input_ids"].shape != kept.shape:
            raise ValueError(f"{self.name}: pools its vectors, and of which tokens these are is not known")
        tokenizer: Any = self.module.tokenizer
        spelled = [tokenizer.decode([token]).strip() for token in features["input_ids"][kept].tolist()]
        ends = [0, *accumulate(tokens.lengths)]
        return tokens, [spelled[first:last] for first, last in pairwise(ends)]

    def _encoded(self, texts: Sequence[str]) -> tuple[Tokens, Mapping[str, Tensor], Tensor]:
        """The vectors that the mask keeps, all that the model made, and that mask."""
        features = _features(self.module, list(texts), self._task)
        kept = features["attention_mask"].bool()
        lengths: list[int] = kept.sum(1).tolist()
        if 0 in lengths:
            raise ValueError(f"{self.name}: its mask leaves nothing of the text {texts[lengths.index(0)]!r}")
        return Tokens(features["token_embeddings"][kept], lengths), features, kept


class LateInteractionPictures(PictureEncoder[Image.Image]):
    """Vectors of the patches of pictures, as ColPali and ColQwen encode documents, without those of the prompt's words.

    A vector of ColQwen is of several patches that the model merged, on a grid of the picture's own shape; one of
    ColPali is of a patch of the picture made square. Those of ColModernVBert are of tiles of the picture, one tile
    after another, and of the whole of it at last.

    Args:
        name: a folder, or a model of the Hub.

    Attributes:
        name, dim, module: as those of ``PictureEncoder``.

    Raises:
        ValueError: it cannot be loaded, reads no pictures, or cuts them into tiles otherwise than Idefics3's; names it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        model: Any = _load(name, {"backend": "pil"})  # gives the same with torchvision and without
        self.module = model
        self.dim = _dim_of(name, model)
        self._processor: Any = getattr(model.processor, "image_processor", None)
        if self._processor is None or not model.supports("image"):
            raise ValueError(f"{name}: reads no pictures, only {', '.join(model.modalities)}")
        with named(name):
            self._tiles = cuts_tiles(model.processor)
        self._merged: int | None = getattr(self._processor, "merge_size", None)
        self._image_token = int(model.tokenizer.convert_tokens_to_ids(model.processor.image_token))
        if self._merged is None and not self._tiles:
            with named(name):
                placement_of(self._processor, 64, 48)

    def settings(self) -> dict[str, Any]:
        return _settings(self.module)

    def prepare(self, picture: Image.Image) -> Image.Image:
        """The picture: the library prepares it with the others of its batch, whose words it pads."""
        check_shape(*picture.size)
        return picture

    def encode(self, prepared: Sequence[Image.Image]) -> Tokens:
        if self._tiles:  # which sentence-transformers gives to the processor without the prompt that goes with pictures
            given = self.module.processor.process_images(list(prepared))  # type: ignore[operator, union-attr]
            features = _made(self.module, given, "document")
        else:
            features = _features(self.module, list(prepared), "document")
        if features["token_embeddings"].shape[:2] != features["input_ids"].shape:
            raise ValueError(f"{self.name}: pools its vectors, and where these lie is not known")
        own = (features["input_ids"] == self._image_token) & features["attention_mask"].bool()
        if self._tiles:
            boxes = [
                self._of_tiles(int(count), *picture.size) for count, picture in zip(own.sum(1), prepared, strict=True)
            ]
            return Tokens(features["token_embeddings"][own], [len(part) for part in boxes], torch.cat(boxes))
        grids, placements = [], []
        cell = (1.0, 1.0)
        for place, picture in enumerate(prepared):
            vectors = features["token_embeddings"][place][own[place]]
            if self._merged is None:
                placement, (height, width) = placement_of(self._processor, *picture.size)
                rows = columns = round(len(vectors) ** 0.5)
                cell = height / rows, width / columns
            else:
                patches = features["image_grid_thw"][place].tolist()
                rows, columns = patches[1] // self._merged, patches[2] // self._merged
                placement = Placement(*picture.size, columns, rows)  # in cells: all of the picture is read
            if len(vectors) != rows * columns:
                raise ValueError(f"{self.name}: {len(vectors)} vectors of a picture are no {rows} x {columns} grid")
            grids.append(vectors.unflatten(0, (rows, columns)))
            placements.append(placement)
        return on_cells(grids, placements, cell)

    def _of_tiles(self, vectors: int, width: int, height: int) -> Tensor:
        """Their boxes in a picture that is cut into tiles."""
        rows, columns = tiles_of(self._processor, width, height)
        cells = math.isqrt(vectors // (rows * columns + 1))
        if vectors != (rows * columns + 1) * cells**2:
            raise ValueError(f"{self.name}: {vectors} vectors of a picture are no {rows} x {columns} tiles and it all")
        return tile_boxes(rows, columns, cells, width, height)


def _load(name: str, processing: dict[str, Any] | None = None) -> Any:
    """The model in float32 on the CPU, for inference; without running code that its folder holds."""
    for package in ("sentence_transformers", "accelerate"):
        check_installed(package, "sentence-transformers", f"{name}, a model of late interaction,")
    from sentence_transformers import MultiVectorEncoder

    with quiet(), named(name):
        model = MultiVectorEncoder(
            name,
            device="cpu",
            trust_remote_code=False,
            model_kwargs={"dtype": torch.float32},
            processor_kwargs=processing,
        )
        missing = _missing(name, model[0])
    check_whole(name, missing)
    return model.float().eval()


def _missing(name: str, first: Any) -> list[str]:
    """The weights of a model's first module that its files lack, which sentence-transformers draws at random and keeps
    to itself. Other modules it refuses to load without theirs, and several first ones, a router's, are not looked into.
    """
    inner = getattr(first, "model", None)
    if inner is None:
        return []
    modules = find_file(name, "modules.json")
    # On "meta", for which transformers wants accelerate, nothing but names and shapes is read again.
    _, info = type(inner).from_pretrained(
        name,
        config=inner.config,
        subfolder="" if modules is None else files_json.read_json(modules)[0]["path"],
        device_map="meta",
        output_loading_info=True,
        trust_remote_code=False,
    )
    return list(info["missing_keys"])


def _dim_of(name: str, model: Any) -> int:
    dim = model.get_embedding_dimension()
    if dim is None:
        raise ValueError(f"{name}: does not say how many numbers its vectors have")
    return int(dim)


def _settings(model: Any) -> dict[str, Any]:
    """Settings that the vectors depend on besides the weights: prompts, and each module's configuration."""
    processor = model.processor
    return {
        "prompts": dict(model.prompts),
        "default prompt": model.default_prompt_name,
        "modules": [
            plain_settings(module.get_config_dict()) if hasattr(module, "get_config_dict") else type(module).__name__
            for module in model
        ],
        "processor": plain_settings(processor.to_dict()) if hasattr(processor, "to_dict") else type(processor).__name__,
    }


def _features(model: Any, items: list[Any], task: str) -> Mapping[str, Tensor]:
    """Outputs of the model for a batch, as its ``encode_query`` and ``encode_document`` make them, with gradients."""
    prompt = next((model.prompts[key] for key in _PROMPTS[task] if key in model.prompts), None)
    if prompt is None and model.default_prompt_name is not None:
        prompt = model.prompts.get(model.default_prompt_name)
    return _made(model, model.preprocess(items, prompt=prompt, task=task), task)


def _made(model: Any, given: Mapping[str, Any], task: str) -> Mapping[str, Tensor]:
    device = device_of(model)
    features = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in given.items()}
    made: Mapping[str, Tensor] = model(features, task=task)
    return made
