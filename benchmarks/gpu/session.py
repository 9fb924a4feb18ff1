"""Everything that a GPU can tell, in SECONDS (480): python -m benchmarks.gpu.session [STAGE ...]; `make gpu`.

Stages follow one another, each a process of its own with a share of the time; what one does not use the next ones may.
What is printed, and what is found, is in RESULTS (.benchmarks/gpu) as it comes: a run that is cut at any second has all
until then. STAGES on a machine without a GPU say so, or do on the CPU what they can.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.lines import RESULTS, tell
from tests.until import ENDS_AT

NEEDED = ("torch", "triton", "numpy", "pytest", "hypothesis", "rich", "typer", "PIL", "matplotlib", "safetensors",
          "filelock", "jinja2", "tomli_w")  # fmt: skip
TOOLKITS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
LOG = "log.txt"
LAST_TEST = 10  # seconds ahead of a stage's end, in which no further test begins
PYTEST = ("-m", "pytest", "-m", "gpu", "-W", "default", "-q", "--tb=short", "-p", "no:cacheprovider",
          "-p", "benchmarks.gpu.failures", "-p", "tests.until", "tests/gpu")  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """Some part of the time, and what Python runs in it."""

    name: str
    share: float
    arguments: tuple[str, ...]


def module(name: str, *arguments: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.gpu.{name}", *arguments)


def stages() -> list[Stage]:
    """Stages in their order; shares are seconds of 480."""
    parallel = ("-n", str(min(14, os.cpu_count() or 1))) if importlib.util.find_spec("xdist") else ()
    suite, memory = (f"--junit-xml={RESULTS / name}.xml" for name in ("suite", "memory"))
    return [
        Stage("warpgroups", 40, module("warpgroups")),
        Stage("facts", 15, module("facts")),
        Stage("checks", 75, module("checks")),
        Stage("figures", 120, module("run", "fused")),
        Stage("counters", 70, module("counters")),
        Stage("host", 25, module("host_share")),
        Stage("suite", 110, (*PYTEST, *parallel, suite, "-k", "not memory")),
        Stage("memory", 25, (*PYTEST, memory, "-k", "memory")),
        Stage("training", 25, module("training")),
        Stage("sanitizer", 40, module("sanitizer")),
        Stage("commands", 35, module("commands")),
        Stage("rivals", 50, module("run", "rivals")),
    ]


def lacking() -> list[str]:
    """Packages and tools that some stage needs, and that are not here."""
    found = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return found + [name for name in ("ncu", "compute-sanitizer") if tool(name) is None]


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on PATH, in CUDA_HOME, or where toolkits usually are."""
    home = os.environ.get("CUDA_HOME")
    for folder in (None, *((f"{home}/bin",) if home else ()), *TOOLKITS):
        if found := shutil.which(name, path=folder):
            return found
    return None


def run(stage: Stage, seconds: float, directory: Path) -> str:
    """Runs a stage for so long at most, its output to the screen and the log; says how it ended."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "SECONDS_OF_STAGE": f"{seconds:.0f}"}
    environment[ENDS_AT] = str(time.time() + seconds - LAST_TEST)
    environment.setdefault("HYPOTHESIS_PROFILE", "brief")
    begun = time.monotonic()
    with (directory / LOG).open("ab", buffering=0) as log:
        process = subprocess.Popen(
            [sys.executable, *stage.arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        while (ended := process.poll()) is None and time.monotonic() - begun < seconds:
            _pass_on(process.stdout.fileno(), log.fileno())
            time.sleep(0.02)
        if ended is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        else:  # processes that it started go, too
            _kill_group(process.pid)
        _pass_on(process.stdout.fileno(), log.fileno())
        process.stdout.close()
    return "cut at the end of its time" if ended is None else "done" if ended == 0 else f"failed ({ended})"


def _pass_on(source: int, log: int) -> None:
    """Copies all that can be read to the log."""
    try:
        while data := os.read(source, 1 << 16):
            os.write(log, data)
            os.write(1, data)
    except BlockingIOError:
        pass


def _kill_group(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def main() -> int:
    seconds = float(os.environ.get("SECONDS") or 480)
    chosen = sys.argv[1:]
    every = [stage for stage in stages() if not chosen or stage.name in chosen]
    if unknown := set(chosen) - {stage.name for stage in every}:
        print(
            f"no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in stages())}", file=sys.stderr
        )
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    begun, left = time.monotonic(), sum(stage.share for stage in every)
    if missing := lacking():
        tell("session", f"missing here, and so are figures that need it: {', '.join(missing)}", missing=missing)
    failed = False
    for stage in every:
        share = stage.share / left * (seconds - (time.monotonic() - begun))
        left -= stage.share
        print(f"\n== {stage.name}, up to {share:.0f} s", flush=True)
        started = time.monotonic()
        ended = run(stage, share, RESULTS)
        failed |= ended.startswith("failed")
        took = time.monotonic() - started
        tell("session", f"== {stage.name}: {ended}, {took:.1f} s", ended_stage=stage.name, ended=ended, took=took)
    subprocess.run([sys.executable, "-m", "benchmarks.gpu.page"], check=False)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
