"""Parts of encoders from transformers: configurations, weights and image processors, from a folder or the Hub."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import nn

from crossret.files.json import read_json_object

_NOT_USED = ("pooler", "classifier", "decoder", "mask_token", "head.", "cls.", "lm_head")
"""Parts of names of weights that tokens do not depend on: checkpoints often lack them."""

_NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""Nothing of what a model's folder holds is run, and nobody is asked whether it may be."""


def check_installed(package: str, extra: str, why: str) -> None:
    """Raise a ValueError that names the extra where a package of encoders is missing."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{why} needs {package}; install the extra: pip install 'crossret[{extra}]'")


def read_config(name: str) -> dict[str, Any]:
    """Contents of a model's config.json, in a folder, or of the Hub's ``name``, which its cache may have.

    Raises:
        ValueError: transformers is missing, or there is no such model; says what was tried.
    """
    check_installed("transformers", "encoders", f"the encoder {name}")
    from transformers import PretrainedConfig

    with quiet(), named(name):
        values: dict[str, Any] = PretrainedConfig.get_config_dict(name)[0]
    if not values:
        where = "is no folder with config.json" if Path(name).exists() else "is no folder, and no model of the Hub"
        raise ValueError(f"{name}: {where}")
    return values


def find_file(name: str, file: str) -> str | None:
    """Where a file of a model is: of a folder, or of the Hub's ``name``; None where there is none."""
    from transformers.utils import cached_file

    with quiet(), named(name):
        raising = ("missing_entries", "gated_repo", "connection_errors")
        path: str | None = cached_file(name, file, **{f"_raise_exceptions_for_{what}": False for what in raising})
    return path


def read_json(name: str, file: str) -> dict[str, Any]:
    """Contents of a model's JSON file, as ``find_file`` finds it; nothing where there is none.

    Raises:
        ValueError: it is malformed; names it.
    """
    path = find_file(name, file)
    return {} if path is None else read_json_object(path)


def load_module(name: str, tower: str | None = None, *, weights: bool = True) -> nn.Module:
    """A model in float32 for inference, or one tower of it, such as "vision_model", where it has several.

    Without ``weights`` it has random ones, for who has others to put in their place.

    Raises:
        ValueError: it cannot be loaded, or weights are missing that tokens depend on; names them.
    """
    from transformers import AutoConfig, AutoModel

    with quiet(), named(name):
        if weights:
            model, info = AutoModel.from_pretrained(name, dtype=torch.float32, output_loading_info=True, **_NO_CODE)
        else:
            config = AutoConfig.from_pretrained(name, **_NO_CODE)
            model, info = AutoModel.from_config(config, dtype=torch.float32, **_NO_CODE), {"missing_keys": []}
    whole = tower is not None and hasattr(model, tower)
    check_whole(name, [key for key in info["missing_keys"] if not whole or key.startswith(f"{tower}.")])
    return cast(nn.Module, getattr(model, tower) if whole and tower else model).eval()


def check_whole(name: str, missing: Iterable[str]) -> None:
    """Raise a ValueError where weights are missing that tokens depend on; names the first."""
    needed = sorted(key for key in missing if not any(part in key for part in _NOT_USED))
    if needed:
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise ValueError(f"{name}: its weights have no {needed[0]}{more}")


def load_processor(name: str) -> Any:
    """The image processor of a model, in its form for PIL and NumPy where there is one: what is extracted does not
    depend on whether torchvision is there.

    Raises:
        ValueError: there is none, or it needs torchvision, which is missing.
    """
    from transformers import AutoImageProcessor

    with quiet(), named(name):
        try:
            return AutoImageProcessor.from_pretrained(name, backend="pil", **_NO_CODE)
        except (ValueError, ImportError) as error:
            if importlib.util.find_spec("torchvision") is not None:
                raise
            raise ValueError(
                "its image processor needs torchvision, or is not known to transformers "
                f"({' '.join(str(error).split())})"
            ) from error


def files_of(module: Any, processor: Any) -> dict[str, bytes]:
    """Files that ``save_pretrained`` of a model and of its image processor write, by name, without weights."""
    texts = {"config.json": module.config.to_json_string(), "preprocessor_config.json": processor.to_json_string()}
    return {name: text.encode() for name, text in texts.items()}


def files_of_texts(config: Mapping[str, Any], tokenizer: Any) -> dict[str, bytes]:
    """A model's config.json and what ``save_pretrained`` of its tokenizer writes, by the files' names."""
    with TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        files = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir()) if path.is_file()}
    plain = {name: value for name, value in config.items() if not name.startswith("_")}  # others tell where it was
    return {**files, "config.json": json.dumps(plain, indent=1).encode()}


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model. Raises a ValueError where there is none."""
    from transformers import AutoTokenizer

    with quiet(), named(name):
        return AutoTokenizer.from_pretrained(name, **_NO_CODE)


def plain_settings(values: Any) -> dict[str, Any]:
    """A processor's or a tokenizer's settings as JSON has them, without the version that wrote them."""
    return {key: value for key, value in json.loads(json.dumps(values, default=str)).items() if "version" not in key}


@contextmanager
def named(name: str) -> Iterator[None]:
    """Turn what transformers raises of a model that it cannot load into a ValueError that names it."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, TypeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name}: cannot be loaded ({why})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' bars and reports, which are for who trains a model on."""
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()
