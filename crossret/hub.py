"""Models on the Hugging Face Hub, by the extra `hub`."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

_FILES = ["config.json", "vocabulary.json", "model.safetensors"]  # no other file of a stranger's is asked for


def download(name: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """The directory of a model of the Hub, ``user/name``, downloaded where it is not cached.

    Raises:
        FileNotFoundError: this is no such name, and no directory. ImportError: the extra is missing.
    """
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"{name}: no such directory, nor the name of a model of the Hub, user/name")
    _check_installed(f"{name}: no such directory; to take it from the Hugging Face Hub")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=_FILES))


def upload(save: Callable[[Path], None], name: str, *, private: bool | None, token: str | None, message: str) -> str:
    """Put what ``save`` writes into a directory on the Hub; returns its address there. ImportError: no extra."""
    _check_installed("to put a model on the Hugging Face Hub")
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as directory:
        save(Path(directory))
        repository = api.create_repo(name, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=repository, folder_path=directory, commit_message=message))


def _check_installed(why: str) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ImportError(f"{why}, install the extra 'hub': pip install 'crossret[hub]'")
