"""Record of the model that encoded the items in a directory: ``model.json``, which `encode` writes beside them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from crossret.files.features import VALUES
from crossret.files.json import read_json_object, write_json
from crossret.hyperparameters import ModelConfig
from crossret.models.checkpoints import config_of, digest_of_weights
from crossret.models.protocol import Matcher, evaluating

MODEL = "model.json"
IMAGES, CAPTIONS = "images", "captions"  # the sides, and the directories of either below that of both

_MOST_DIMENSIONS, _LONGEST_NAME = 4, 64


@dataclass(frozen=True)
class Manifest:
    """Manifest that `encode` writes of the items of one side.

    Attributes:
        side: "images" or "captions".
        config: the model's kind and hyper-parameters.
        weights: a fingerprint of its parameters and buffers.
        vectors: shapes of what it keeps of an item beside its rows, by name.
    """

    side: str
    config: ModelConfig
    weights: str
    vectors: dict[str, tuple[int, ...]]

    @staticmethod
    def of(model: Matcher, side: str, vectors: dict[str, tuple[int, ...]]) -> Manifest:
        """Manifest of what a model encoded."""
        return Manifest(side, model.config, digest_of_weights(model), vectors)

    def write(self, directory: Path) -> None:
        """Write it beside the items; raises an OSError."""
        config = json.loads(self.config.to_json())
        contents = {**asdict(self), "model": self.config.kind, "config": config}
        write_json(directory / MODEL, contents)

    @staticmethod
    def read(directory: Path) -> Manifest:
        """Manifest of the items in a directory.

        Raises:
            OSError: it is missing or cannot be read.
            ValueError: it is malformed; names the file.
        """
        path = directory / MODEL
        contents = read_json_object(path)
        if contents.keys() != {"side", "model", "config", "weights", "vectors"}:
            raise ValueError(f"{path}: not what `encode` writes beside items; of another version, encode them again")
        side, weights, vectors = (contents[name] for name in ("side", "weights", "vectors"))
        if side not in (IMAGES, CAPTIONS):
            raise ValueError(f"{path}: 'side' must be {IMAGES!r} or {CAPTIONS!r}, not {side!r}")
        if not isinstance(weights, str):
            raise ValueError(f"{path}: 'weights' must be a text")
        if not isinstance(vectors, dict) or not all(_is_vector(*entry) for entry in vectors.items()):
            raise ValueError(f"{path}: 'vectors' must be an object of shapes by name")
        config = config_of(contents["model"], contents["config"], path)
        return Manifest(side, config, weights, {name: tuple(shape) for name, shape in vectors.items()})

    def check(self, model: Matcher, place: Path, dim: int) -> None:
        """Whether these are items that a model may score.

        Raises:
            ValueError: they are of another model, or their rows, of ``dim`` numbers, or vectors are not as it has them;
                names ``place``.
        """
        kind = self.config.kind
        if kind != model.kind:
            raise ValueError(f"{place}: encoded by {kind}, but the model is {model.kind}: encode it with this model")
        theirs, ours = asdict(self.config), asdict(model.config)
        for name in theirs:
            if theirs[name] != ours[name]:
                values = f"{name} {theirs[name]}, but the model has {ours[name]}"
                raise ValueError(f"{place}: encoded by {kind} with {values}: encode it with this model")
        if self.weights != digest_of_weights(model):
            raise ValueError(f"{place}: encoded by {kind} of other weights than the model's: encode it with this model")
        # Encoded items have one form on both sides, but for regions that are kept as they came.
        device = next(model.parameters()).device
        with evaluating(model):
            size = model.config.text_dim
            word = torch.zeros(1, 2, dtype=torch.int64) if size is None else torch.zeros(1, 2, size)
            item = model.encode_captions(word.to(device), torch.tensor([2]).to(device))
        kept = self.side == IMAGES and self.config.keeps_regions
        wanted = model.config.image_dim if kept else item.sequences.size(2)
        shapes = {name: tuple(vector.shape[1:]) for name, vector in item.vectors.items()}
        if dim != wanted or any(self.vectors.get(name) != shape for name, shape in shapes.items()):
            raise ValueError(f"{place}: {VALUES} or {MODEL} is not what {kind} makes: encode it again")


def _is_vector(name: str, shape: Any) -> bool:
    plain = name.isidentifier() and len(name) <= _LONGEST_NAME
    sizes = isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS
    return plain and sizes and all(type(size) is int and 0 < size < 2**31 for size in shape)
