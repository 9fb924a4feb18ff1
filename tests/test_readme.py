"""What the README prints as Python runs as it is printed, in an empty directory and with nothing to warn of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernels.subprocesses import ROOT, run_python

SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.M)


def test_the_snippets_are_found() -> None:
    assert "triplet_loss(" in SNIPPETS[0]
    assert "maxsim_topk(" in SNIPPETS[1]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_run_as_printed(snippet: str, tmp_path: Path) -> None:
    process = run_python("-W", "error", "-c", snippet, directory=tmp_path, PYTHONPATH=str(ROOT))
    assert (process.returncode, process.stderr) == (0, "")
