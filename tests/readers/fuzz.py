"""`make fuzz-files`: atheris looks for files that readers of files from others do not tell, a process for each reader.

``python -m tests.readers.fuzz --minutes 10 [names...]``: so many minutes of each target, or of those whose names begin
so. What is found is kept, as the bytes that the target is tried with, and the others go on. It tells how many were
tried of each, and fails if something was found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crossret.system import cores

ROOT = Path(__file__).parents[2]
SLOWEST, MOST_MEMORY = 20, 3072  # seconds and MiB of one try: no small file may take more
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where files are written and read in no time
INSTRUMENTED = ["crossret", "csv", "gzip", "json", "pickletools", "tomllib", "zipfile"]


def fuzz_one(name: str, options: list[str]) -> None:
    """Try one target, under the options of libFuzzer, in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.readers.target import LARGEST_SEED
        from tests.readers.targets import TARGETS

    files, corpus = (Path(tempfile.mkdtemp()) for _ in range(2))  # where ``report_of`` removes them
    with TARGETS[name].opened(files) as (seeds, attempt):
        for number, seed in enumerate(seeds):
            (corpus / f"{number}").write_bytes(seed)
        limits = [f"-timeout={SLOWEST}", f"-rss_limit_mb={MOST_MEMORY}", f"-max_len={LARGEST_SEED}"]
        atheris.Setup([sys.argv[0], *options, *limits, str(corpus)], lambda found: [attempt(found)].clear())
        atheris.Fuzz()


def report_of(name: str, seconds: float, kept: Path) -> tuple[str, bool]:
    """(A line of what came of one target, with what it raised; whether nothing was found)."""
    prefix = kept / f"{name.replace('/', '-')}-"
    options = [f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={prefix}", "-print_final_stats=1"]
    command = [sys.executable, "-m", "tests.readers.fuzz", "--one", name, "--", *options]
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": folder}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, errors="replace", stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    counts = re.findall(r"^(?:#|stat::number_of_executed_units: )([0-9]+)", done.stdout, re.MULTILINE)
    tried = max(map(int, counts), default=0)
    line = f"{name}: {tried:,} tried"
    if done.returncode == 0:
        return f"{line}, nothing found", True
    found = re.search(r"written to (\S+)", done.stdout)
    return f"{line}, FOUND {found[1] if found else 'no file'}\n{done.stdout[-3000:]}", False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all by default")
    parser.add_argument("--minutes", type=float, default=10, help="of each reader")
    parser.add_argument("--together", action="store_true", help="the minutes are those of all readers together")
    parser.add_argument("--kept", type=Path, default=Path("build/fuzz"), help="where what is found goes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        fuzz_one(chosen.one, chosen.names)
    from tests.readers.targets import TARGETS

    names = [name for name in TARGETS if not chosen.names or name.startswith(tuple(chosen.names))]
    kept = chosen.kept.absolute()
    kept.mkdir(parents=True, exist_ok=True)
    workers = min(8, cores())
    seconds = 60 * chosen.minutes * (workers / len(names) if chosen.together else 1)
    fine = True
    with ThreadPoolExecutor(workers) as pool:
        for line, well in pool.map(lambda name: report_of(name, seconds, kept), names):
            print(line, flush=True)
            fine = fine and well
    sys.exit(0 if fine else f"what was found is in {chosen.kept}: mend its reader, and add it to the reader's tests")


if __name__ == "__main__":
    main()
