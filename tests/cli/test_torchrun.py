"""crossret train as torchrun starts it: several processes, one of them killed, and one that goes on alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from crossret.distributed.torchrun import is_first, own_device, started_by_torchrun
from crossret.files.toml import read_toml
from tests.cli.command import ENVIRONMENT, TINY, Cli
from tests.processes import started

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "crossret"]


def process_of(output: Path, rank: int) -> int:
    """The process that trains there as this rank."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments, environment = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:  # another user's, or gone
            continue
        if os.fsencode(output) in arguments and f"RANK={rank}".encode() in environment:
            return int(process.name)
    raise AssertionError(f"no process trains in {output} as rank {rank}")


def test_a_killed_rank_ends_the_training_which_goes_on_alone(crossret: Cli, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    command = ["train", str(data), "--output", str(output), *TINY, "--epochs", "3", "--log-every", "1"]
    log = output / "log.jsonl"
    with started([*TORCHRUN, *command], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as torchrun:
        while torchrun.poll() is None and not (log.is_file() and log.read_bytes().count(b"\n") >= 3):
            time.sleep(0.01)
        os.kill(process_of(output, 1), signal.SIGKILL)
        _, errors = torchrun.communicate()
    assert torchrun.returncode != 0
    # torchrun tells the others to end, perhaps before they miss the one that was killed.
    said = [line for line in errors.splitlines() if line.startswith("crossret: ") and "warning" not in line]
    assert len(said) == 1, errors
    assert re.search("rank 0 of 2: .* another rank has ended|ended by SIGTERM; to go on, repeat the command", said[0])
    assert "device" in read_toml(output / "run.toml")
    assert errors.count("to train") == 1  # the first rank alone says what is trained

    assert crossret(*command, "--resume", "--threads", "1") == 0, crossret.err
    assert "written with 1 thread" in crossret.err
    assert "on each of 2 ranks, resumed with" in crossret.err
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 97))


RANKS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str | None]) -> None:
    """Of torchrun's variables these alone; None is one that is not there."""
    for name, value in {**dict.fromkeys([*RANKS, "LOCAL_RANK"]), **environment}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_ranks_take_a_device_each(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert own_device(torch.device("cuda:1")) == torch.device("cuda:1")  # without torchrun
    set_environment(monkeypatch, {**RANKS, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert own_device(cpu) == cpu
    assert own_device(cuda) == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device cuda:1: ranks on one machine take a CUDA device each"):
        own_device(torch.device("cuda:1"))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="rank 2 of this machine has no CUDA device, of which there are 2"):
        own_device(cuda)


WHOLE = "must be a whole number from"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"WORLD_SIZE": size}, f"WORLD_SIZE {WHOLE} 1 to 65536, not {size!r}") for size in ("two", "0", "1_0")),
        ({"RANK": "2"}, f"RANK {WHOLE} 0 to 1, not '2'"),
        ({"LOCAL_RANK": "x"}, f"LOCAL_RANK {WHOLE} 0 to 1, not 'x'"),
        ({"MASTER_PORT": None}, f"MASTER_PORT {WHOLE} 1 to 65535, not unset"),
        ({"MASTER_ADDR": "a b"}, "MASTER_ADDR must be where the ranks meet, not 'a b'"),
        ({"RANK": None}, "the environment has WORLD_SIZE='2', but no RANK: torchrun sets both"),
        ({"WORLD_SIZE": None}, "the environment has RANK='1', but no WORLD_SIZE: torchrun sets both"),
    ],
    ids=str,
)
def test_an_environment_that_is_no_torchrun_s_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], message: str
) -> None:
    set_environment(monkeypatch, {**RANKS, **changes})
    for ask in (started_by_torchrun, is_first, lambda: own_device(torch.device("cpu"))):
        with pytest.raises(ValueError) as raised:
            ask()
        assert message in str(raised.value)


def test_a_mistake_in_the_environment_is_one_line(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, {**RANKS, "WORLD_SIZE": "10^20"})
    assert crossret("train", data, "--output", tmp_path / "run") == 2
    assert crossret.err == f"crossret: the environment's WORLD_SIZE {WHOLE} 1 to 65536, not '10^20'\n"
    assert not (tmp_path / "run").exists()
