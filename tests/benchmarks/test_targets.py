"""The benchmark of targets: sides take turns, figures meet limits or miss them, the program prints and keeps them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import cpu_seconds
from benchmarks.cases import Case
from benchmarks.targets import Row, main
from benchmarks.turns import Side, take_turns
from crossret.files.json import read_json


def test_sides_take_turns_and_the_first_does_not_count() -> None:
    taken = []

    def side(name: str, *seconds: float) -> Side:
        left = iter(seconds)

        def turn() -> float:
            taken.append(name)
            return next(left)

        return turn

    turns = take_turns({"a": side("a", 99, 1, 6, 9), "b": side("b", 99, 2, 2, 2)}, 1.0, least=1, most=3)
    assert "".join(taken) == "ab" * 4
    assert turns.ratio("a", "b") == 3
    assert str(turns) == "a 6000 ms, b 2000 ms"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("", 1.15, 1.15), "met"),
        (Row("", 1.16, 1.15), "missed"),
        (Row("", 1.7, 1.7, at_least=True), "met"),
        (Row("", 1.69, 1.7, at_least=True), "missed"),
        (Row("", 5.0), "–"),
        (Row("", None, 1.15), "absent"),
    ],
)
def test_verdicts(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


def test_a_quick_run_prints_and_keeps_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    code = main(["--quick", "--threads", "1", "--only", "layouts", "--json", str(tmp_path / "kept.json")])
    kept = read_json(tmp_path / "kept.json")
    verdicts = {row["verdict"] for row in kept["rows"]}
    assert code == int(verdicts != {"met"})
    assert kept["machine"]["threads"] == 1
    assert torch.get_num_threads() == threads
    printed = capsys.readouterr().out
    for row in kept["rows"]:
        assert row["case"] in printed
        assert row["verdict"] == "absent" if row["figure"] is None else row["figure"] > 0


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (["--threads", "0"], "--threads must be at least 1"),
        (["--only", "cancelling"], "invalid choice: 'cancelling'"),
        (["--json", "nowhere/kept.json"], "there is no directory nowhere"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    arguments: list[str], mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert mistake in capsys.readouterr().err


@pytest.mark.parametrize("name", cpu_seconds.CALLS)
def test_cpu_seconds_of_every_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cpu_seconds.SECONDS", 0.0)
    assert cpu_seconds.cpu_seconds(name, Case(3, 3, dim=12, regions=(4, 4), words=(3, 3))) > 0


def test_threads_have_a_process_of_their_own_and_wait_passively_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "300000")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    started: dict[int, Callable[[str, Case], Side]]
    with cpu_seconds.processes((3,)) as started:
        assert started[3]("Sum-Max", Case(3, 1, dim=12, regions=(4, 4), words=(3, 3)))() > 0
        (child,) = multiprocessing.active_children()
        environment = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_WAIT_POLICY=PASSIVE" in environment
    assert b"GOMP_SPINCOUNT=300000" not in environment
    assert os.environ["GOMP_SPINCOUNT"] == "300000"
    assert "OMP_WAIT_POLICY" not in os.environ
