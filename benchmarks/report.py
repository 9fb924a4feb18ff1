"""Results of a benchmark run: a table on the terminal and, to be kept, files under results/ and docs/benchmarks.md.

python -m benchmarks.report RUN.json [--record]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.plot import plot_batch_sizes
from benchmarks.results import read_results, write_results
from benchmarks.tables import markdown_table, terminal_table
from crossret.files.atomic import atomic_write

ROOT = Path(__file__).parents[1]
RESULTS = Path("benchmarks/results")
PAGE = Path("docs/benchmarks.md")
PICTURE = Path("docs/assets/batch-sizes.png")
BEGIN, END = "<!-- benchmarks: written by make bench-record -->", "<!-- /benchmarks -->"


def replace_between_markers(text: str, table: str, place: str, begin_line: str = BEGIN, end_line: str = END) -> str:
    """The text with the table between two markers.

    Raises:
        ValueError: the markers are not there once each and in order; names `place`.
    """
    head, begin, rest = text.partition(begin_line)
    _, end, tail = rest.partition(end_line)
    if not (begin and end) or begin_line in rest or end_line in tail:
        raise ValueError(f"{place}: needs one line {begin_line!r} and, after it, one line {end_line!r}")
    return f"{head}{begin}\n{table}\n{end}{tail}"


def record(run: Path, root: Path) -> list[Path]:
    """Keeps a run under `root`: results, plot, the page's table. Returns what was written."""
    results = read_results(run)
    table = f"{markdown_table(results)}\n\n![Pairs scored a second against batch size](assets/{PICTURE.name})"
    page = with_section(root, table)
    (root / RESULTS).mkdir(parents=True, exist_ok=True)
    kept = root / RESULTS / f"{results.name}.json"
    plot_batch_sizes(results, root / PICTURE)
    write_results(results, kept)
    return [kept, root / PICTURE, write_page(root, page)]


def with_section(root: Path, table: str, begin: str = BEGIN, end: str = END) -> str:
    """The page of benchmarks with a table between its markers; see `replace_between_markers`."""
    return replace_between_markers((root / PAGE).read_text(encoding="utf-8"), table, PAGE.name, begin, end)


def write_page(root: Path, text: str) -> Path:
    """Writes the page; returns where."""
    with atomic_write(root / PAGE) as file:
        file.write(text.encode())
    return root / PAGE


def lines_of(arguments: argparse.Namespace) -> Iterator[str]:
    yield terminal_table(read_results(arguments.run))
    if arguments.record:
        yield ""
        yield from (f"wrote {path.relative_to(ROOT)}" for path in record(arguments.run, ROOT))


def command_line(documentation: str | None) -> argparse.ArgumentParser:
    """Command line of a report, whose module says by itself what it does."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="keep it where the project keeps its figures")
    return parser


def print_report(parser: argparse.ArgumentParser, lines_of: Callable[[argparse.Namespace], Iterable[str]]) -> int:
    """Prints what the arguments ask for, a mistake as one line; gives the exit code."""
    arguments = parser.parse_args()
    try:
        for line in lines_of(arguments):
            print(line)
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("run", type=Path, help="pytest-benchmark's JSON, or a file of results/")
    return print_report(parser, lines_of)


if __name__ == "__main__":
    sys.exit(main())
