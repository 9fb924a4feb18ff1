"""What the README prints as Python runs as it is printed, in an empty directory and with nothing to warn of."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from tests.kernels.subprocesses import ROOT, run_python

SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.M)


def test_the_snippets_are_found() -> None:
    for snippet, call in zip(SNIPPETS, ("crossret.load(", "triplet_loss(", "maxsim_topk("), strict=False):
        assert call in snippet


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_run_as_printed(snippet: str, tmp_path: Path) -> None:
    process = run_python("-W", "error", "-c", snippet, directory=tmp_path, PYTHONPATH=str(ROOT))
    assert (process.returncode, process.stderr) == (0, "")


def test_the_guide_names_what_there_is() -> None:
    """Every command, and every module and function that a table names with its package."""
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    help_text = run_python("-m", "crossret", "--help", directory=ROOT, PYTHONPATH=str(ROOT)).stdout
    commands = set(re.findall(r"\bcrossret ([a-z-]+)", text))
    assert len(commands) > 5
    assert commands <= set(re.findall(r"^  ([a-z-]+) ", help_text, re.M))
    names = set(re.findall(r"`(crossret(?:_kernels)?(?:\.\w+)+)`", text))
    assert len(names) > 5
    for name in names:
        assert callable(resolve_name(name)) or isinstance(resolve_name(name), ModuleType), name


def test_pages_that_sources_cite_are_there() -> None:
    """By their sections, as `kernels.md` and the sign of a section."""
    own = [ROOT / name for name in ("crossret", "crossret_kernels", "csrc", "benchmarks", "tests")]
    kinds = (".py", ".h", ".inl", ".cpp", ".cuh", ".cu")
    texts = [path.read_text(encoding="utf-8") for top in own for path in top.rglob("*") if path.suffix in kinds]
    cited = {cite for text in texts for cite in re.findall(r"\b([\w-]+\.md) §(\d+)", text)}
    assert len(cited) > 2
    for page, section in cited:
        assert f"\n## {section}. " in (ROOT / "docs" / page).read_text(encoding="utf-8"), (page, section)
