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
