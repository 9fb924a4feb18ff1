"""Models on the Hugging Face Hub, by the extra `hub`.

Names and arguments are those of huggingface_hub's ModelHubMixin. The mixin itself would be a base class that is there
with the extra alone, looks for `config.json` where a training has a directory a model, and fills `__init__`'s `model`
with what that file calls so, a name.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# No other file of a stranger's is asked for. The last two are tokenizers'.
_OF_ENCODERS = ["encoder/*.json", "text_encoder/*.json", "text_encoder/*.txt", "text_encoder/*.model"]
_FILES = ["config.json", "vocabulary.json", "captions_by.json", "model.safetensors", *_OF_ENCODERS]


def download(name: str, **options: Any) -> Path:
    """The directory of a model of the Hub, ``user/name``, by ``snapshot_download`` with these options.

    Raises:
        FileNotFoundError: this is no such name, and no directory. ImportError: the extra is missing.
    """
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"{name}: no such directory, nor the name of a model of the Hub, user/name")
    _check_installed(f"{name}: no such directory; to take it from the Hugging Face Hub")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=_FILES, **options))


def upload(
    save: Callable[[Path], None], repo_id: str, *, private: bool | None, token: str | None, **commit: Any
) -> str:
    """Put what ``save`` writes into a directory on the Hub, by ``HfApi.upload_folder``; returns its address there.

    Raises:
        ImportError: the extra is missing.
    """
    _check_installed("to put a model on the Hugging Face Hub")
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as directory:
        save(Path(directory))
        repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=repository, folder_path=directory, **commit))


def _check_installed(why: str) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ImportError(f"{why}, install the extra 'hub': pip install 'crossret[hub]'")
