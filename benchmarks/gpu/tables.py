"""Results of a GPU as a table: times, ratios to the floor and to others, and whether the figures are still current."""

from __future__ import annotations

from benchmarks.gpu.results import FUSED, GpuResults, Measurement

STALE = "**stale**: since then the kernels have changed of"
HEADINGS = ("ms", "replayed", "floor", "÷ floor", *(f"{name} ×" for name in FUSED), "error", "peak MiB")
LEGEND = (
    "Floors are of the same card: products and reads at the rates that it was measured to have, reads and writes those "
    "of inputs and of as large a result, all pairs the same implementation's for as much to multiply. ≤ and ≥ are "
    "targets. triton × and cuda ×: how many times as fast they are, pair for pair, host time included. Errors are "
    "beside float64, of a sample: the largest of scores; of gradients ‖difference‖ / ‖gradients‖. Replayed: the ms of "
    "a CUDA graph of the call, without the host's part."
)


def gpu_table(results: GpuResults, sources: dict[str, str]) -> str:
    """The run as a Markdown table under a line that says of what it is; `sources` are the kernels' hashes of today."""
    stale = ", ".join(results.stale(sources))
    lines = [f"{describe(results)} — {STALE} {stale}" if stale else describe(results), ""]
    lines += ["| case | " + " | ".join(HEADINGS) + " |", "|---|" + "---:|" * len(HEADINGS)]
    for group in results.groups():
        for measurement in group:
            name = f"{', '.join(measurement.group)}: {measurement.implementation}"
            lines.append(f"| {name} | " + " | ".join(_cells(measurement, group)) + " |")
    lines += ["", LEGEND, *(f"Without {name}: {reason}" for name, reason in results.missing.items())]
    return "\n".join(lines)


def describe(results: GpuResults) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    suite = "not run" if results.suite is None else ", ".join(f"{n} {what}" for what, n in results.suite.items())
    return f"{results.device['name']}, {versions}, {results.date}, tests: {suite}"


def missed_targets(results: GpuResults) -> list[str]:
    """A line for each ratio, to the floor or of another implementation's time, that is not as wanted."""
    lines = []
    for group in results.groups():
        for m in group:
            case = ", ".join(m.group)
            if m.target is not None and m.floor_ratio > m.target:
                lines.append(f"{case}: {m.implementation} {m.floor_ratio:.2f} × the floor, wanted {m.target:.2f}")
            for name, wanted in (m.slower or {}).items():
                times = times_as_slow(m, name, group)
                if times is not None and times < wanted:
                    lines.append(f"{case}: {name} {times:.3g} × as fast as {m.implementation}, wanted {wanted:.3g}")
    return lines


def times_as_slow(measurement: Measurement, name: str, group: list[Measurement]) -> float | None:
    """How many times as fast the named one is, pair for pair; None of itself and where it is not there."""
    other = next((other for other in group if other.implementation == name), None)
    if other is None or measurement is other:
        return None
    return (measurement.seconds / measurement.work) / (other.seconds / other.work)


def _cells(measurement: Measurement, group: list[Measurement]) -> list[str]:
    return [
        f"{measurement.seconds * 1e3:.3g}",
        "" if measurement.replayed_seconds is None else f"{measurement.replayed_seconds * 1e3:.3g}",
        measurement.floor,
        _beside(f"{measurement.floor_ratio:.2f}", "≤", measurement.target),
        *(_times(measurement, name, group) for name in FUSED),
        "" if measurement.error is None else f"{measurement.error:.1e}",
        "" if measurement.peak_mebibytes is None else f"{measurement.peak_mebibytes:.0f}",
    ]


def _times(measurement: Measurement, name: str, group: list[Measurement]) -> str:
    times = times_as_slow(measurement, name, group)
    return "" if times is None else _beside(f"{times:.2f}", "≥", (measurement.slower or {}).get(name))


def _beside(figure: str, sign: str, target: float | None) -> str:
    """A figure with what is wanted of it."""
    return figure if target is None else f"{figure} ({sign} {target:g})"
