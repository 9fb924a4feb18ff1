"""The benchmark of targets: sides take turns, figures meet limits or miss them, the program prints and keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import cpu_seconds
from benchmarks.cases import Case
from benchmarks.targets import main
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


@pytest.mark.parametrize("name", cpu_seconds.CALLS)
def test_cpu_seconds_of_every_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cpu_seconds.SECONDS", 0.0)
    assert cpu_seconds.cpu_seconds(name, Case(3, 3, dim=12, regions=(4, 4), words=(3, 3))) > 0
