"""Groups of tests that take minutes and test the same on any processor: `make test` runs those whose sources changed.

`tests/passed.json` keeps a hash of the sources that each group passed with. `make test-all` runs every group.

    python -m tests.groups changed              prints make's targets of the groups to run
    python -m tests.groups digest GROUP         prints the hash of the group's sources
    python -m tests.groups passed GROUP HASH    keeps it, if it still is theirs
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests/passed.json"
_OF_ALL = (
    *("pyproject.toml", "constraints.txt", "Makefile", "setup.py", "setup_cuda.py", "crossret_kernels/**/*.py"),
    *("crossret_kernels/**/*.json", "tests/*.py", "tests/kernels/**/*", "tests/gpu/**/*"),
)
SOURCES: dict[str, Sequence[str]] = {
    "interpreted": (*_OF_ALL, "tests/interpreted/**/*"),
    "compiled": _OF_ALL,
    "simt": (*_OF_ALL, "tests/simt/**/*", "csrc/**/*"),
}


def digest(group: str) -> str:
    """SHA-256 of the names and contents of a group's sources."""
    files = {file for pattern in SOURCES[group] for file in ROOT.glob(pattern) if file.is_file()}
    sha = hashlib.sha256()
    for file in sorted(file for file in files if "__pycache__" not in file.parts):
        sha.update(f"{file.relative_to(ROOT).as_posix()}\0{file.stat().st_size}\0".encode())
        sha.update(file.read_bytes())
    return sha.hexdigest()


def main(command: str, group: str = "", before: str = "") -> None:
    if command == "digest":
        print(digest(group))
        return
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if command == "passed":
        if digest(group) != before:
            sys.exit(f"tests/passed.json: sources of {group} changed while they were tested")
        kept[group] = before
        RECORD.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return
    for name in SOURCES:
        if kept.get(name) == digest(name):
            print(f"tests/passed.json: sources of {name} are as they passed; make test-all runs it", file=sys.stderr)
        else:
            print(f"test-{name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
