"""What the library for GPUs is built with: torch's CUDA, nvcc, and the GPUs that TORCH_CUDA_ARCH_LIST names."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from setuptools.errors import PlatformError

TORCH_MINIMUM = (2, 10)
USUAL_FOLDER = "/usr/local/cuda/bin"
LEAST = (8, 0)
# As far as nvcc knows them; the oldest and the newest of those also as PTX, for GPUs that are not named and to come.
USUAL = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
# With instructions that no later GPU has: every GPU of 9.0 has them.
WITH_FEATURES = {"90": "90a"}
# Below it nvcc makes the same PTX of the kernels for all, line by line but for the name; from it on another one.
PTX_DIFFERS = 100


def flag(name: str) -> bool:
    """Whether a variable is set, to anything but 0."""
    return os.environ.get(name, "").strip() not in ("", "0")


def torch_directory() -> Path:
    """Where the installed torch is; it is not imported, which would cost every build seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise PlatformError("crossret builds against torch >= 2.10, and torch is not installed in this Python.")
    version = metadata.version("torch")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < TORCH_MINIMUM:
        raise PlatformError(f"crossret builds against torch >= 2.10, and torch {version} is installed in this Python.")
    return Path(spec.origin).parent


def torch_cuda() -> str | None:
    """The version of CUDA that the installed torch is built with; None where it has none."""
    text = (torch_directory() / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def find_nvcc() -> Path:
    """That of CUDA_HOME, else the first on PATH, else where toolkits are usually installed."""
    home = os.environ.get("CUDA_HOME", "").strip()
    if home:
        found = shutil.which("nvcc", path=str(Path(home, "bin")))
        if found is None:
            raise PlatformError(f"CUDA_HOME={home!r} holds no bin/nvcc")
        return Path(found)
    found = shutil.which("nvcc") or shutil.which("nvcc", path=USUAL_FOLDER)
    if found is None:
        raise PlatformError("nvcc was not found: install the CUDA toolkit, or name its folder in CUDA_HOME")
    return Path(found)


def asked_of(nvcc: Path, question: str) -> str:
    """What nvcc says of itself."""
    ran = subprocess.run([nvcc, question], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise PlatformError(f"{nvcc} {question} failed: {(ran.stderr or ran.stdout).strip()}")
    return ran.stdout


class Cuda(NamedTuple):
    """What the CUDA library is built with."""

    nvcc: Path
    release: str
    torch: str | None  # torch's own
    architectures: tuple[str, ...]  # as TORCH_CUDA_ARCH_LIST names them

    def __str__(self) -> str:
        beside = "a PyTorch without it" if self.torch is None else f"PyTorch's {self.torch}"
        return f"of CUDA {self.release}, beside {beside}, for {' '.join(self.architectures)}"

    def generate(self) -> list[str]:
        """The flags of nvcc that name the architectures; those that share PTX share most of what compiling takes."""
        numbers = [name.partition("+")[0].replace(".", "") for name in self.architectures]
        alike = [number for number in numbers if number.isdigit() and int(number) < PTX_DIFFERS]
        flags = []
        for name, number in zip(self.architectures, numbers, strict=True):
            if number in WITH_FEATURES:
                own = virtual = WITH_FEATURES[number]
            else:
                own, virtual = number, min(alike, key=int) if number in alike else number
            flags.append(f"-gencode=arch=compute_{virtual},code=sm_{own}")
            if own in WITH_FEATURES.values():
                flags.append(f"-DCROSSRET_SM{own.upper()}")
            if name.endswith("+PTX"):
                flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
        return list(dict.fromkeys(flags))  # 9.0 and 9.0a are one


def find_cuda() -> Cuda:
    """What the CUDA library is to be built with; PlatformError says why there is nothing, ValueError what is wrong."""
    if flag("CROSSRET_SKIP_CUDA"):
        raise PlatformError("CROSSRET_SKIP_CUDA is set")
    built = torch_cuda()
    if built is None and not flag("CROSSRET_FORCE_CUDA"):
        raise PlatformError("this PyTorch is built without CUDA")
    nvcc = find_nvcc()
    found = re.search(r"release ([\d.]+)", asked_of(nvcc, "--version"))
    if found is None:
        raise PlatformError(f"{nvcc} does not tell its release")
    if built is not None and built.split(".")[0] != found[1].split(".")[0]:
        raise PlatformError(f"nvcc is of CUDA {found[1]}, and this PyTorch is built with CUDA {built}")
    return Cuda(nvcc, found[1], built, architectures(set(asked_of(nvcc, "--list-gpu-arch").split())))


def architectures(known: set[str]) -> tuple[str, ...]:
    """Those of TORCH_CUDA_ARCH_LIST that the kernels run on, else USUAL; nvcc knows the named ones."""

    def knows(number: str) -> bool:
        return f"compute_{number.rstrip('af').replace('.', '')}" in known

    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").replace(",", " ").split()
    if not asked:
        usual = [number for number in USUAL if knows(number)]
        if not usual:
            raise PlatformError("this nvcc knows no GPU that the kernels run on")
        ends = {usual[0], usual[-1]}  # PTX that any GPU takes, and the newest
        return tuple(f"{number}+PTX" if number in ends else number for number in usual)
    kept = []
    for name in dict.fromkeys(asked):
        parts = re.fullmatch(r"(\d+)\.(\d)[af]?(\+PTX)?", name)
        if parts is None:
            raise ValueError(f"TORCH_CUDA_ARCH_LIST names {name!r}; it takes numbers such as 8.0, 9.0a or 12.0+PTX")
        if (int(parts[1]), int(parts[2])) < LEAST:
            continue  # what torch is built for in the same environment
        if not knows(name.partition("+")[0]):
            raise ValueError(f"TORCH_CUDA_ARCH_LIST names {name!r}, which this nvcc does not know")
        kept.append(name)
    if not kept:
        raise PlatformError("TORCH_CUDA_ARCH_LIST names no GPU that the kernels run on: 8.0 or newer")
    return tuple(kept)
