"""Results of a GPU as a table: times, ratios to the floor and to others, and whether the figures are still current."""

from __future__ import annotations

from benchmarks.gpu.results import FUSED, GpuResults, Measurement

STALE = "**stale**: the kernels have changed since"
HEADINGS = ("ms", "÷ floor", "target", "triton ×", "error", "peak MiB")
LEGEND = (
    "The floor is torch.matmul of the packed operands in the same run; of a training step four of them. triton ×: how "
    "many times as fast triton is, pair for pair. Errors are the largest beside float64, of a sample."
)


def gpu_table(results: GpuResults, sources: str) -> str:
    """The run as a Markdown table under a line that says of what it is; `sources` is the kernels' hash of today."""
    lines = [f"{describe(results)}{f' — {STALE}' if results.stale(sources) else ''}", ""]
    lines += ["| case | " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * len(HEADINGS)]
    for group in results.groups():
        for measurement in group:
            name = f"{', '.join(measurement.group)}: {measurement.implementation}"
            lines.append(f"| {name} | " + " | ".join(_cells(measurement, group)) + " |")
    lines += ["", LEGEND, *(f"Without {name}: {reason}" for name, reason in results.missing.items())]
    return "\n".join(lines)


def describe(results: GpuResults) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return f"{results.device['name']}, {versions}, {results.date}"


def missed_targets(results: GpuResults) -> list[str]:
    """A line for each ratio to the floor that is above its target."""
    return [
        f"{', '.join(m.group)}: {m.floor_ratio:.2f} × the floor, wanted {m.target:.2f}"
        for m in results.measurements
        if m.target is not None and m.floor_ratio > m.target
    ]


def _cells(measurement: Measurement, group: list[Measurement]) -> list[str]:
    ours = next((other for other in group if other.implementation == FUSED), None)
    times = ""
    if ours is not None and measurement is not ours:
        times = f"{(measurement.seconds / measurement.flop) / (ours.seconds / ours.flop):.1f}"
    return [
        f"{measurement.seconds * 1e3:.3g}",
        f"{measurement.floor_ratio:.2f}",
        "" if measurement.target is None else f"{measurement.target:.2f}",
        times,
        f"{measurement.error:.1e}",
        f"{measurement.peak_mebibytes:.0f}",
    ]
