"""Whether figures that are kept show a backend to be the fastest: `backend=None` takes none before they do."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.gpu.results import GpuResults, Measurement


def doubts(backend: str, other: str, recorded: Iterable[GpuResults], sources: dict[str, str]) -> list[str]:
    """Why `backend` is not to be taken ahead of `other`; empty where figures of these sources are for it."""
    current = [results for results in recorded if not {backend, other} & set(results.stale(sources))]
    if not current:
        return [f"no figures of these sources of {backend!r} and {other!r}: make gpu"]
    found = []
    for results in current:
        if not results.suite or results.suite["failed"] or not results.suite["passed"]:
            found.append(f"{results.name}: the GPU suite did not pass on these sources")
        for group in results.groups():
            found += [f"{results.name}: {reason}" for reason in _slower(backend, other, group)]
    return found


def _slower(backend: str, other: str, group: list[Measurement]) -> list[str]:
    """Of one case, of whatever `other` serves."""
    by_name = {measurement.implementation: measurement for measurement in group}
    if other not in by_name:
        return []
    case = ", ".join(group[0].group)
    if backend not in by_name:
        return [f"{case}: {backend!r} has no figure"]
    ours, theirs = by_name[backend].seconds, by_name[other].seconds
    return [f"{case}: {ours:.3g} s by {backend!r}, {theirs:.3g} s by {other!r}"] if ours >= theirs else []
