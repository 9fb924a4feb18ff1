"""Contents of a checkpoint, asked for by name: what is missing or of another kind is an error of the file."""

from __future__ import annotations

import os
import reprlib
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from crossret.data.vocabulary import Vocabulary
from crossret.files.pickled import read_saved
from crossret.files.tensors import TensorType
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.models.base import Model
from crossret.models.shapes import shapes_alone

AnyModel = TypeVar("AnyModel", bound=Model)
Number = (int, float)
GRU = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")  # torch's tensors of a layer, before its number


@dataclass(frozen=True)
class Contents:
    """A dictionary of a checkpoint.

    Attributes:
        path: the file.
        values: its items by strings.
        within: where in the file that is, with a dot at the end; empty for all of it.
    """

    path: str | os.PathLike[str]
    values: Mapping[str, Any]
    within: str = ""

    @staticmethod
    def of_file(path: str | os.PathLike[str]) -> Contents:
        """All of a checkpoint; raises as ``read_saved``, and a ValueError where it is no dictionary by strings."""
        values = read_saved(path)
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ValueError(f"{path}: not a checkpoint: no dictionary by strings, but {type(values).__name__}")
        return Contents(path, values)

    def inner(self, name: str) -> Contents:
        """A dictionary, or the options of a program, of those within.

        Raises:
            ValueError: there is none of that name.
        """
        return self.of(name, self.values.get(name))

    def of(self, name: str, values: object) -> Contents:
        """Contents in a value that has been taken out already; raises as ``inner``."""
        if isinstance(values, Namespace):
            values = vars(values)
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ValueError(f"{self.path}: {self.within}{name} is no dictionary by strings")
        return replace(self, values=values, within=f"{self.within}{name}.")

    def option(self, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """An option of one of these types; the default, if there is one, where it is missing.

        Raises:
            ValueError: it is missing or of another type.
        """
        value = self.values.get(name, default)
        if type(value) not in (kinds if isinstance(kinds, tuple) else (kinds,)):
            found = reprlib.repr(value)  # also of a value that holds itself
            raise ValueError(f"{self.path}: {self.within}{name} is {found}, which no published code writes")
        return value

    def tensor(self, name: str, dims: int) -> Tensor:
        """A dense, finite float32 tensor of so many dimensions, none of them empty, in memory of its own.

        Raises:
            ValueError: it is missing or another, is not finite, or claims more bytes than the file has.
        """
        value = self.values.get(name)
        if value is None:
            raise ValueError(f"{self.path}: tensor {self.within}{name} is missing")
        plain = isinstance(value, Tensor) and value.layout is torch.strided and value.is_cpu and not value.is_quantized
        if not plain or value.dtype is not torch.float32 or value.dim() != dims or not value.numel():
            found = TensorType.of(value) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{self.path}: tensor {self.within}{name} is {found}, expected float32 of {dims} dimensions"
            )
        # A view may repeat one number a billion times, which a copy would write out.
        if value.numel() * value.element_size() > os.path.getsize(self.path):
            raise ValueError(f"{self.path}: tensor {self.within}{name} is {TensorType.of(value)}, larger than the file")
        if not value.isfinite().all():
            raise ValueError(f"{self.path}: tensor {self.within}{name} is not finite")
        return value.detach().clone(memory_format=torch.contiguous_format)


def sides(contents: Contents) -> tuple[Contents, Contents]:
    """The tensors of the image and of the text, which SCAN and VSE++ keep in a list.

    Raises:
        ValueError: there is no such list of two dictionaries.
    """
    parts = contents.values.get("model")
    if not isinstance(parts, (list, tuple)) or len(parts) != 2:
        raise ValueError(f"{contents.path}: no checkpoint of SCAN, VSE++ or MHSAN: 'model' is no image and text")
    image, text = (contents.of(f"model[{number}]", part) for number, part in enumerate(parts))
    return image, text


def sources_of(tensors: Iterable[str], image: Contents, text: Contents) -> dict[str, str]:
    """Names in the checkpoint of each tensor of the two sides, by our names, which begin with "image." or "text."."""
    return {
        name: f"{(image if side == 'image' else text).within}{theirs}"
        for name, (side, _, theirs) in ((name, name.partition(".")) for name in tensors)
    }


def embedding(text: Contents, vocabulary: Vocabulary) -> Tensor:
    """A row a word of the vocabulary, (words, word_dim).

    Raises:
        ValueError: as ``Contents.tensor``, or there are other than the vocabulary's words.
    """
    table = text.tensor("embed.weight", 2)
    if len(table) != len(vocabulary):
        raise ValueError(
            f"{text.path}: tensor {text.within}embed.weight is of {len(table)} words, but the vocabulary has "
            f"{len(vocabulary)}"
        )
    return table


def assembled(
    kind: type[AnyModel],
    fields: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    sources: Mapping[str, str],
    place: object,
    options: str = "",
) -> AnyModel:
    """A model in evaluation mode with these weights.

    Args:
        kind: its class.
        fields: its hyper-parameters.
        tensors: its weights by name.
        sources: places of the weights by their names, for errors.
        place, options: the file, and where in it hyper-parameters are, likewise.

    Raises:
        ValueError: a hyper-parameter is out of range, or a weight is missing or has another shape; names the file, and
            the tensor and what was expected.
    """
    try:
        config = MODEL_CONFIGS[kind.kind](**fields)
    except ValueError as error:
        raise ValueError(f"{place}: {options}{error}") from error
    with shapes_alone():
        model = kind(config)
    for name, wanted in model.state_dict().items():
        if name not in tensors:
            raise ValueError(f"{place}: nothing in it for {name}")
        if tensors[name].shape != wanted.shape:
            found, expected = tuple(tensors[name].shape), tuple(wanted.shape)
            raise ValueError(f"{place}: tensor {sources[name]} has shape {found}, expected {expected}")
    model.load_state_dict(tensors, assign=True)
    return model.eval()
