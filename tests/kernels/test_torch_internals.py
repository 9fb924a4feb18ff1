"""Without PyTorch's private names everything goes on by the public ways."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "crossret_kernels" / "torch_internals.py"
LOOKUP = "getattr(value, name, None)"


def test_without_private_names() -> None:
    """In a process of its own: what is defined keeps what it found."""
    chosen = "test_autocast or test_torch_func or wanted_gradients or (test_opcheck and dtype0)"
    command = [sys.executable, "-m", __name__, str(ROOT / "tests/kernels/test_registration.py"), "-k", chosen]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]


if __name__ == "__main__":
    source = SOURCE.read_text(encoding="utf-8")
    assert LOOKUP in source
    module = types.ModuleType("crossret_kernels.torch_internals")
    exec(compile(source.replace(LOOKUP, "None"), str(SOURCE), "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
