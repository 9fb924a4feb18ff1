"""`make fuzz`: new examples for the tests that draw them, round after round; how many were tried, and what they found.

``python -m tests.fuzz --minutes 10 [tests...]``. A round runs to its end, so that it is known what it tried: tests that
it has not begun when time is over are skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from crossret.system import cores
from tests.until import ENDS_AT

ROOT = Path(__file__).parents[1]
FOUND = "an example was found: add it to its test as @example(...), or as printed above @reproduce_failure"


def examples_of_round(tests: list[str], workers: int, interpreted: bool) -> tuple[int, bool]:
    """(How many were tried, whether all went well)."""
    options = ["--numprocesses", str(workers), "--dist", "worksteal", "-q", "-x", "-p", "no:cacheprovider"]
    options += ["-p", "tests.until", "-m", "hypothesis", "--hypothesis-show-statistics"]
    environment = os.environ | {"HYPOTHESIS_PROFILE": "fuzz"} | ({"TRITON_INTERPRET": "1"} if interpreted else {})
    count, shown = 0, True
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            count += sum(int(a) + int(b) for a, b in re.findall(r"(\d+) passing, (\d+) failing", line))
            shown = shown and "Hypothesis Statistics" not in line
            if shown or re.match(r"=+ (FAILURES|ERRORS|short test summary)", line):
                shown = True
                print(line, end="", flush=True)
    return count, running.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=["tests", "tests/interpreted"], help="all by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=min(8, cores()))
    chosen = parser.parse_args()
    began, total, rounds, fine = time.time(), 0, 0, True
    os.environ[ENDS_AT] = str(began + 60 * chosen.minutes)
    while fine and time.time() < float(os.environ[ENDS_AT]):
        for interpreted in (False, True):
            tests = [test for test in chosen.tests if ("tests/interpreted" in test) == interpreted]
            if tests and fine:
                count, fine = examples_of_round(tests, chosen.workers, interpreted)
                total += count
        rounds += 1
    if fine and not total:
        sys.exit("no example was tried: tests were not begun in that time, or draw none")
    print(f"{total:,} examples in {rounds} rounds, {(time.time() - began) / 60:.0f} minutes: ", end="")
    print("they found nothing" if fine else FOUND)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
