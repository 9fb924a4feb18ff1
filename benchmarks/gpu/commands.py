"""Commands of a user on the device at hand: every model trained a little, evaluated, searched, explained."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu.lines import tell
from crossret.models.kinds import MODELS

COMMAND = (sys.executable, "-m", "crossret")
SMALL = ("--preset", "scenes", "--epochs", "1", "--batch-size", "32")


def run(name: str, *arguments: str, launcher: Sequence[str] = COMMAND) -> bool:
    """One command: how long it took, or what it said last."""
    begun = time.monotonic()
    ran = subprocess.run([*launcher, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    took = time.monotonic() - begun
    said = " | ".join(ran.stdout.strip().splitlines()[-4:])[-500:]
    tell(
        "commands", f"{name}: ok, {took:.1f} s" if ran.returncode == 0 else f"{name}: FAILED ({ran.returncode}): {said}"
    )
    return ran.returncode == 0


def of_model(kind: str, scenes: Path, runs: Path) -> bool:
    """Run a model's commands one after the other, until one fails."""
    own, extra = str(runs / kind), ("--amp",) if kind == "scan" else ()
    return (
        run(f"train {kind} {' '.join(extra)}", "train", str(scenes), "--output", own, "--model", kind, *SMALL, *extra)
        and run(f"evaluate {kind}", "evaluate", own, str(scenes), "--split", "test")
        and run(f"search {kind}", "search", own, str(scenes), "--split", "test", "--caption", "a small red circle")
        and (kind in ("vse", "mhsan") or run(f"explain {kind}", "explain", own, str(scenes), "--html", f"{own}.html"))
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        scenes, runs = Path(directory, "scenes"), Path(directory)
        if not run(
            "render-scenes", "render-scenes", "--output", str(scenes), "--train", "60", "--dev", "10", "--test", "20"
        ):
            return 1
        launcher = (
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "1",
            "-m",
            "crossret",
        )
        with ThreadPoolExecutor(8) as pool:
            ended = list(pool.map(lambda kind: of_model(kind, scenes, runs), MODELS))
        ended.append(
            run(
                "train scan, torchrun", "train", str(scenes), "--output", str(runs / "ranks"), *SMALL, launcher=launcher
            )
        )
    return int(not all(ended))


if __name__ == "__main__":
    sys.exit(main())
