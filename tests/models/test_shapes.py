"""Models without memory for their parameters."""

from __future__ import annotations

import sys

import torch

from crossret.models.shapes import shapes_alone
from tests.kernels.subprocesses import run_python
from tests.models.batch import VARIANTS, make


def test_no_model_needs_the_compiler_of_torch_to_be_read() -> None:
    """Which takes every process that only scores, searches or explains seconds to import."""
    process = run_python("-m", __name__)
    assert process.returncode == 0, process.stderr


def main() -> None:
    for name, (kind, fields) in VARIANTS.items():
        with shapes_alone():
            model = make(kind, **fields)
        assert all(tensor.is_meta for tensor in model.state_dict().values()), name
        assert "torch._dynamo" not in sys.modules, name
    assert not torch.empty(1).is_meta


if __name__ == "__main__":
    main()
