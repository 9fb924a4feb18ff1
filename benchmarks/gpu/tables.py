"""Results of a GPU as a table: times, ratios to the floor and to others, and whether the figures are still current."""

from __future__ import annotations

from benchmarks.gpu.results import FUSED, GpuResults, Measurement

STALE = "**stale**: the kernels have changed since"
HEADINGS = ("ms", "replayed", "÷ floor", "target", "triton ×", "error", "peak MiB")
LEGEND = (
    "The floor is torch.matmul of the packed operands in the same run; of a training step four of them. triton ×: how "
    "many times as fast triton is, pair for pair. Errors are beside float64, of a sample: the largest of scores; of a "
    "training step ‖difference‖ / ‖gradients‖. Replayed: the ms of a CUDA graph of the call, without the host's part."
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
    """A line for each ratio, to the floor or of another implementation's time, that is not as wanted."""
    lines = []
    for group in results.groups():
        for m in group:
            case, times = ", ".join(m.group), times_as_slow(m, group)
            if m.target is not None and m.floor_ratio > m.target:
                lines.append(f"{case}: {m.floor_ratio:.2f} × the floor, wanted {m.target:.2f}")
            if m.slower is not None and times is not None and times < m.slower:
                lines.append(f"{case}: {times:.3g} × as fast as {m.implementation}, wanted {m.slower:.3g}")
    return lines


def times_as_slow(measurement: Measurement, group: list[Measurement]) -> float | None:
    """How many times as fast triton is, pair for pair; None of triton itself and where it is not there."""
    ours = next((other for other in group if other.implementation == FUSED), None)
    if ours is None or measurement is ours:
        return None
    return (measurement.seconds / measurement.flop) / (ours.seconds / ours.flop)


def _cells(measurement: Measurement, group: list[Measurement]) -> list[str]:
    times = times_as_slow(measurement, group)
    return [
        f"{measurement.seconds * 1e3:.3g}",
        "" if measurement.replayed_seconds is None else f"{measurement.replayed_seconds * 1e3:.3g}",
        f"{measurement.floor_ratio:.2f}",
        "" if measurement.target is None else f"{measurement.target:.2f}",
        "" if times is None else f"{times:.1f}",
        f"{measurement.error:.1e}",
        f"{measurement.peak_mebibytes:.0f}",
    ]
