"""The record of recall on real pictures as people read it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

RECALLS = {"r1": "R@1", "r5": "R@5", "r10": "R@10"}
WAYS = {"i2t": "image → sentence", "t2i": "sentence → image"}


def table(found: dict[str, Any]) -> str:
    """A record's tables, one a collection."""
    lines = [
        f"{found['machine']['cpu']}, {found['date']}: means of {found['seeds']} seeds ± their standard deviation. "
        f"Packages: {', '.join(found['packages'])}."
    ]
    heads = ["model", "captions", "loss", *(f"{way} {'/'.join(RECALLS.values())}" for way in WAYS.values()), "seconds"]
    for name, of in found["collections"].items():
        counts = ", ".join(f"{count:,} to {split}" for split, count in of["counts"].items())
        lines += ["", f"**{name}**: {counts}; chance {100 / of['counts']['test']:.1f}.", "", _row(heads)]
        lines += [_row(["---", "---", "---", *("---:" for _ in heads[3:])])]
        for entry in of["trainings"]:
            recalls = [
                " / ".join(_spread([run[f"{way}_{recall}"] for run in entry["runs"]]) for recall in RECALLS)
                for way in WAYS
            ]
            seconds = f"{statistics.mean(run['training_seconds'] for run in entry['runs']):.0f}"
            lines.append(_row([entry["model"], entry["captions"], entry["loss"], *recalls, seconds]))
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.pstdev(values):.1f}"
