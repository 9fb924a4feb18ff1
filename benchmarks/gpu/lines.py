"""Findings of a run on a GPU, a JSON object a line in RESULTS/lines.jsonl, written as it is found: a cut loses none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("RESULTS") or ".benchmarks/gpu")
LINES = "lines.jsonl"


def tell(stage: str, text: str, **found: Any) -> None:
    """Prints the text, and keeps what was found with it."""
    print(text, flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"stage": stage, "text": text, **found}, ensure_ascii=False) + "\n")


def told(directory: Path | None = None, stage: str | None = None) -> Iterator[dict[str, Any]]:
    """All lines, or those of a stage; a last one that was cut is left out."""
    path = (RESULTS if directory is None else directory) / LINES
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if stage in (None, found["stage"]):
            yield found
