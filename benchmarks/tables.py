"""Results as tables: all of them on the terminal, the main ones in docs/benchmarks.md."""

from __future__ import annotations

from benchmarks.results import LOOP, PRODUCT, Measurement, Results, speed

HEADINGS = ("median ms", "µs/pair", "GFLOP/s", "÷ floor", "÷ reading", "÷ torch.mm", "loop ÷", "peak MiB")
LEGEND = (
    "Times divided by that of the floor (the similarity product's operations in registers), of reading inputs and "
    "results once from memory\n(where that takes more than half of the floor), of torch.mm for the product alone; the "
    "loop's time divided by this one. Ratios are per pair.\nA training step is divided by four products, a yardstick "
    "and no bound: pairs without a gradient need fewer.\nPeak memory is beyond inputs and results."
)
NONE = "–"
# Columns of the page's table: operation, dtype, heading.
MAIN = (
    ("t2i LSE forward", "float32", "t2i LSE"),
    ("i2t AVG forward", "float32", "i2t AVG"),
    ("t2i LSE forward", "bfloat16", "t2i LSE, bf16"),
    ("i2t AVG forward", "bfloat16", "i2t AVG, bf16"),
    ("t2i LSE training step", "float32", "t2i LSE, training step"),
    ("i2t AVG training step", "float32", "i2t AVG, training step"),
    ("Sum-Max", "float32", "Sum-Max"),
    ("Sum-Max", "bfloat16", "Sum-Max, bf16"),
)
THREADS = 2  # the page's table has these


def terminal_table(results: Results) -> str:
    """Every measurement a line, under the case that it shares with other implementations."""
    lines = [describe(results), ""]
    width = max(len(measurement.implementation) for measurement in results.measurements) + 2
    lines.append(" " * width + "".join(f"{heading:>12}" for heading in HEADINGS))
    for group in results.groups():
        operation, case, dtype, threads = group[0].group
        lines += ["", f"{operation}: {case}, {dtype}, {threads} thread{'s' * (threads > 1)}"]
        lines += [
            f"  {measurement.implementation:<{width - 2}}"
            + "".join(f"{cell:>12}" for cell in _cells(measurement, group))
            for measurement in group
        ]
    return "\n".join([*lines, "", LEGEND, "", *comparisons(results)])


def comparisons(results: Results) -> list[str]:
    """Comparisons of several cases: a line for two threads beside one, and for bfloat16 beside float32."""
    measured = {(*m.group, m.implementation): m for m in results.measurements}
    lines = []
    for (operation, case, dtype, threads, name), m in measured.items():
        single = measured.get((operation, case, dtype, 1, name))
        if threads == 2 and single is not None:
            times = single.seconds / m.seconds
            lines.append(f"{operation}, {dtype}, {name}: 2 threads are {times:.2f} times as fast as 1")
        wide = measured.get((operation, case, "float32", threads, name))
        if dtype == "bfloat16" and wide is not None and m.pairs is not None:
            times = wide.seconds / m.seconds
            threaded = f"{threads} thread{'s' * (threads > 1)}"
            lines.append(f"{operation}, {threaded}, {name}: bfloat16 is {times:.2f} times as fast as float32")
    return lines


def describe(results: Results) -> str:
    machine = results.machine
    return f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {results.date}"


def _cells(measurement: Measurement, group: list[Measurement]) -> list[str]:
    peak = f"{measurement.peak_mebibytes:.1f}"
    if not (measurement.pairs and measurement.flop and measurement.floor_seconds and measurement.read_seconds):
        return [NONE] * (len(HEADINGS) - 1) + [peak]
    seconds = measurement.seconds
    bound_by_reading = measurement.read_seconds > measurement.floor_seconds / 2
    as_product, as_loop = (speed(measurement, group, name) for name in (PRODUCT, LOOP))
    return [
        _digits(seconds * 1e3),
        _digits(seconds / measurement.pairs * 1e6),
        _digits(measurement.flop / seconds / 1e9 if measurement.products == 1 else None),
        _digits(seconds / measurement.floor_seconds),
        _digits(seconds / measurement.read_seconds) if bound_by_reading else NONE,
        _digits(None if as_product is None else 1 / as_product),
        _digits(as_loop),
        peak,
    ]


def _digits(value: float | None) -> str:
    """Three digits that count, four before the point; the figures are no better."""
    if value is None:
        return NONE
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 4
    return f"{value:,.{decimals}f}"


def markdown_table(results: Results) -> str:
    """Microseconds a pair by implementation and main case, with the floor, and a caption under them.

    Empty columns and lines are left out.
    """
    columns = {
        heading: [m for m in results.measurements if (m.operation, m.dtype, m.threads) == (operation, dtype, THREADS)]
        for operation, dtype, heading in MAIN
    }
    columns = {heading: column for heading, column in columns.items() if column}
    names = list(dict.fromkeys(m.implementation for column in columns.values() for m in column))
    lines = ["| µs a pair | " + " | ".join(columns) + " |", "|---" + "|---:" * len(columns) + "|"]
    for name in names:
        cells = [_per_pair(column, name, fastest=_fastest(column)) for column in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    floors = [_floor(column) for column in columns.values()]
    lines.append("| the floor | " + " | ".join(floors) + " |")
    caption = f"{describe(results)}, {THREADS} threads."
    if any(m.products > 1 for column in columns.values() for m in column):
        caption += " Under a training step stand four products, a yardstick and no bound."
    return "\n".join([*lines, "", caption])


def _fastest(column: list[Measurement]) -> str:
    """Implementations that score: torch.mm does not."""
    scoring = [m for m in column if m.implementation != PRODUCT and m.pairs]
    return min(scoring, key=lambda m: m.seconds / (m.pairs or 1)).implementation if scoring else ""


def _per_pair(column: list[Measurement], name: str, fastest: str) -> str:
    for measurement in column:
        if measurement.implementation == name and measurement.pairs:
            cell = _digits(measurement.seconds / measurement.pairs * 1e6)
            return f"**{cell}**" if name == fastest else cell
    return NONE


def _floor(column: list[Measurement]) -> str:
    """The smallest that was measured, at the machine's best rate."""
    floors = [m.floor_seconds / m.pairs * 1e6 for m in column if m.floor_seconds and m.pairs]
    return _digits(min(floors)) if floors else NONE
