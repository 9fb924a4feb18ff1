"""The page's part on other late-interaction packages: python -m benchmarks.peer_report RUN.json … [--record].

Every RUN is what `benchmarks.peers` wrote in one environment. Without --record the table is printed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, ROOT, command_line, print_report, with_section, write_page
from crossret.files.json import parse_json_object, write_json

BEGIN, END = "<!-- benchmarks of peers: written by make peers-bench -->", "<!-- /benchmarks of peers -->"
HEADINGS = ("package, task", "shape", "dtype", "ms", "MiB", "scores off by", "gradients off by")


def merged(runs: list[Path]) -> dict[str, Any]:
    """All measurements of one machine.

    Raises:
        OSError, ValueError: a file cannot be read, or is no run.
    """
    contents = [parse_json_object(run.read_bytes(), run) for run in runs]
    for run, own in zip(runs, contents, strict=True):
        if not {"machine", "measurements"} <= set(own):
            raise ValueError(f"{run}: no run of benchmarks.peers")
    return {**contents[0], "measurements": [found for own in contents for found in own["measurements"]]}


def table(run: dict[str, Any]) -> str:
    """Theirs → on crossret, a line a measurement."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|" + "---:|" * (len(HEADINGS) - 3)]
    for own in run["measurements"]:
        theirs, ours = own["theirs"], own["ours"]
        cells = [f"{own['package']} {own['version']}, {own['task']}", own["shape"], own["dtype"]]
        cells += [f"{_short(theirs[name])} → **{_short(ours[name])}**" for name in ("milliseconds", "mebibytes")]
        cells.append(f"{theirs['scores']:.0e} → **{ours['scores']:.0e}**")
        of = "gradients"
        cells.append("–" if ours[of] is None else f"{theirs[of]:.2%} → **{ours[of]:.2%}**")
        lines.append("| " + " | ".join(cells) + " |")
    machine = run["machine"]
    facts = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, {run['date']}"
    return "\n".join(lines) + f"\n\nThe package itself → **patched**. {facts}."


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.1f}"


def record(run: dict[str, Any], root: Path) -> list[Path]:
    """Keeps a run under `root`: results, the page's table. Returns what was written."""
    page = with_section(root, table(run), BEGIN, END)
    kept = root / RESULTS / "peers" / f"{run['date']}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, run)
    return [kept, write_page(root, page)]


def lines_of(arguments: argparse.Namespace) -> Iterator[str]:
    run = {"date": datetime.date.today().isoformat(), **merged(arguments.runs)}
    yield table(run)
    if arguments.record:
        yield ""
        yield from (f"wrote {path.relative_to(ROOT)}" for path in record(run, ROOT))


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    return print_report(parser, lines_of)


if __name__ == "__main__":
    sys.exit(main())
