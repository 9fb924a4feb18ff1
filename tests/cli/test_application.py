"""The command as a whole: help, version, what is printed where it cannot be."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console

from crossret.terminal import results_table
from tests.cli.command import COMMANDS, ENVIRONMENT, Cli
from tests.processes import started


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(crossret: Cli, command: str) -> None:
    assert crossret(command, "--help") == 0
    assert f"Examples:\n    crossret {command}" in crossret.out


def test_without_a_command_there_is_help(crossret: Cli) -> None:
    assert crossret() == 0
    assert all(command in crossret.out for command in COMMANDS)


def test_version(crossret: Cli) -> None:
    assert crossret("--version") == 0
    assert crossret.out == f"crossret {metadata.version('crossret')}\n"


@pytest.mark.parametrize("chosen", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "0"}])
def test_threads_wait_shortly_unless_the_user_has_said_how(chosen: dict[str, str]) -> None:
    """As it is when torch is about to be loaded, which reads it then."""
    code = (
        "import os, sys; from crossret import __main__ as command\n"
        "import crossret.cli\n"
        "found = lambda: {name: os.environ[name] for name in sys.argv[1:] if name in os.environ}\n"
        "crossret.cli.main = lambda: print('torch' in sys.modules, found())\n"
        "command.main()"
    )
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in names} | chosen
    done = subprocess.run(
        [sys.executable, "-c", code, *names], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"False {chosen or {'GOMP_SPINCOUNT': '2000'}}\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("crossret ev", "evaluate"),
        ("crossret train --warm", "--warmup-steps"),
        ("crossret train --optimizer ad", "adadelta"),
    ],
)
def test_a_shell_completes_what_is_typed(
    crossret: Cli, monkeypatch: pytest.MonkeyPatch, words: str, offered: str
) -> None:
    monkeypatch.setenv("_CROSSRET_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert crossret() == 0
    assert offered in crossret.out.split()


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, crossret.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_names_and_captions_are_shown_and_not_obeyed(crossret: Cli, data: Path, tmp_path: Path) -> None:
    assert crossret("cluster-regions", data, "--output", tmp_path / "\x1b[2Jout", "--clusters", "2") == 0
    assert crossret.out.startswith(f"{tmp_path}/\\x1b[2Jout: 2 centres")
    caption = "\x1b[2J\u202ea dog " * 10_000
    results = [{"rank": 1, "index": 0, "score": 1.0, "caption": caption}]
    with io.StringIO() as file:
        shown = results_table([{"query": 0, "caption": caption, "results": results}], "\x1b[2J", "image")
        Console(file=file, width=500).print(shown)
        text = file.getvalue()
    assert text.replace("\n", "").isprintable()
    assert len(text) < 4000


def test_figures_are_kept_where_the_terminal_has_no_arrows(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, printed = tmp_path / "figures.json", io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii", errors="strict"))
    assert crossret("evaluate", trained, data, "--output", figures) == 0
    sys.stdout.flush()
    assert f"rsum {json.loads(figures.read_text())['rsum']:.1f}" in printed.getvalue().decode()
    assert b"image ? sentence" in printed.getvalue()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_whoever_stops_reading_is_told_nothing(unbuffered: str) -> None:
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "crossret", "presets"]
    with started(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 1)


def test_what_is_chosen_is_told_where_that_is_asked_for(crossret: Cli, data: Path, trained: Path) -> None:
    assert crossret("evaluate", trained, data) == 0
    assert crossret.err == ""
    for verbosity in ("-v", "-vv"):
        assert crossret(verbosity, "evaluate", trained, data, "--device", "cpu") == 0
        first, second = crossret.err.splitlines()[:2]
        assert re.fullmatch(rf"crossret: {trained}/best: scan of \d+ words, on cpu", first)
        assert re.fullmatch("crossret: scan scores on cpu; where kernels serve it, by backend \\w+", second)
    assert crossret("evaluate", trained, data) == 0  # nothing stays of it
    assert crossret.err == ""
