"""The README and the documentation: what they print runs as it is printed, and what they generate is current."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer

from crossret import cli
from crossret.cli.commands.application import app
from crossret.data import render_scenes
from docs import generate
from tests.kernels.subprocesses import run_python

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"`(crossret(?:_kernels)?(?:\.\w+)+)`")
# What would take minutes runs at a smaller size; what needs a download stands in a block "text".
SHORTER = {
    "render-scenes": ["--train", "20", "--dev", "5", "--test", "20", "--workers", "1"],
    "train": ["--epochs", "1", "--set", "embed_dim=16"],
}


pytestmark = pytest.mark.usefixtures("one_thread")


def snippets(page: Path) -> list[tuple[str, str]]:
    """Blocks by language, in their order."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that pages take for granted: scenes, and features of the size of published ones, of few images."""
    directory = tmp_path_factory.mktemp("world")
    render_scenes(directory / "scenes", train=20, dev=5, test=20, seed=0, workers=1)
    random = np.random.default_rng(0)
    published = directory / "data" / "f30k_precomp"
    published.mkdir(parents=True)
    for split, images in (("train", 40), ("dev", 10), ("test", 10)):
        np.save(published / f"{split}_ims.npy", random.standard_normal((images, 36, 64)).astype(np.float32))
        captions = (f"a photograph of thing {number}\n" * 5 for number in range(images))
        (published / f"{split}_caps.txt").write_text("".join(captions), encoding="utf-8")
    return directory


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=name_of)
def test_what_a_page_prints_runs(page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the page's order, in one directory: shell and Python, each going on where the one before ended."""
    blocks = snippets(page)
    rendered = any("render-scenes" in text for kind, text in blocks if kind == "bash")
    shutil.copytree(world, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("scenes") if rendered else None)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": name_of(page)}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, name_of(page), "exec"), namespace)
        elif kind == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                run(line, page)


def run(line: str, page: Path) -> None:
    """A command line of a page, in this process, and shorter where it would take minutes."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    assert words[0] == "crossret", f"{name_of(page)}: {line!r} is not run: put it into a block 'text'"
    with pytest.raises(SystemExit) as ended:
        cli.main([*words[1:], *SHORTER.get(words[1], [])])
    assert not ended.value.code, line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_names_is_there(page: Path) -> None:
    """Modules, functions and classes that stand with their package, and commands."""
    text = page.read_text(encoding="utf-8")
    for name in sorted(set(NAME.findall(text))):
        assert callable(resolve_name(name)) or isinstance(resolve_name(name), ModuleType), name
    commands = set(re.findall(r"^ *crossret ([a-z-]+)|`crossret ([a-z-]+)", text, re.MULTILINE))
    group: Any = typer.main.get_command(app)
    assert {block or inline for block, inline in commands} <= set(group.commands)


@pytest.mark.parametrize("name", generate.WRITTEN)
def test_generated_parts_are_current(name: str) -> None:
    assert generate.page(name) == (generate.PAGES / name).read_text(encoding="utf-8"), "run python docs/generate.py"


def test_pages_that_sources_cite_are_there() -> None:
    """By their sections, as `kernels.md` and the sign of a section."""
    own = [ROOT / name for name in ("crossret", "crossret_kernels", "csrc", "benchmarks", "tests")]
    kinds = (".py", ".h", ".inl", ".cpp", ".cuh", ".cu")
    texts = [path.read_text(encoding="utf-8") for top in own for path in top.rglob("*") if path.suffix in kinds]
    cited = {cite for text in texts for cite in re.findall(r"\b([\w-]+\.md) §(\d+)", text)}
    assert len(cited) > 2
    for page, section in cited:
        assert f"\n## {section}. " in (ROOT / "docs" / page).read_text(encoding="utf-8"), (page, section)


def test_the_site_builds(tmp_path: Path) -> None:
    """As `make docs` builds it: what links to nothing, or is in no page, is an error."""
    done = run_python(
        "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path), NO_MKDOCS_2_WARNING="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scan_scores" in (tmp_path / "api" / "kernels.html").read_text(encoding="utf-8")
