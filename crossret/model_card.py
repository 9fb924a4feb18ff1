"""The model card of a saved model: what it is, how it is used, and how it came about."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from crossret.data.vocabulary import Vocabulary
from crossret.files.atomic import atomic_write
from crossret.files.json import read_json_lines
from crossret.files.toml import read_toml
from crossret.models.protocol import Matcher

CARD = "README.md"
_LOG, _SETTINGS = "log.jsonl", "run.toml"  # of a training
_PATHS = ("data", "fine_tune", "word_vectors", "vocabulary")  # among the settings
_RECALLS = ("r1", "r5", "r10")

_USE = """\
```python
import crossret

retriever = crossret.load("{name}")
images = retriever.encode_images(features)  # (n, R, {image_dim}) region features
scores, indices = retriever.search(["a dog on the grass"], images, k=10)
```
"""


def write_card(directory: Path, name: str, model: Matcher, vocabulary: Vocabulary, run: Path | None = None) -> None:
    """Write ``README.md`` into a model's directory: with the figures and settings of ``run``, where one trained it.

    Cards are published: of the files that settings name the last part of the path is told.

    Args:
        directory: the model's.
        name: by which it is loaded.
        model, vocabulary: what is there.
        run: the output directory of its training.

    Raises:
        OSError: a file cannot be read or written. ValueError: the run's log is malformed.
    """
    title = str(sys.modules[type(model).__module__].__doc__).strip().rstrip(".")
    weights = sum(parameter.numel() for parameter in model.parameters())
    parts = [
        f"---\nlibrary_name: crossret\ntags:\n- image-text-matching\n- cross-modal-retrieval\n- {model.kind}\n---",
        f"# {title}",
        f"{weights:,} weights, {len(vocabulary):,} words, region features of {model.config.image_dim:,} numbers.",
        _USE.format(name=name, image_dim=model.config.image_dim).rstrip(),
        *_training(run, set(json.loads(model.config.to_json()))),
        "## Hyper-parameters",
        f"```json\n{model.config.to_json()}\n```",
    ]
    with atomic_write(directory / CARD) as file:
        file.write(("\n\n".join(parts) + "\n").encode())


def _training(run: Path | None, known: Collection[str]) -> list[str]:
    """What a training left beside its models, without the settings that are ``known`` as hyper-parameters."""
    parts = []
    if run is not None and (run / _LOG).is_file():
        best = [entry for entry in read_json_lines(run / _LOG) if entry.get("kind") == "epoch" and entry.get("best")]
        parts += [] if not best else ["## Figures", _figures(best[-1], run / _LOG)]
    if run is not None and (run / _SETTINGS).is_file():
        settings = {name: value for name, value in read_toml(run / _SETTINGS).items() if name not in known}
        settings |= {name: Path(settings[name]).name for name in _PATHS if isinstance(settings.get(name), str)}
        parts += ["## Training", f"```toml\n{tomli_w.dumps(settings).strip()}\n```"]
    return parts


def _figures(entry: Mapping[str, Any], place: Path) -> str:
    found = {way: [entry.get(f"{way}_{recall}") for recall in _RECALLS] for way in ("i2t", "t2i")}
    for x in (x for row in found.values() for x in row if x is not None):
        if not isinstance(x, (int, float)) or not 0 <= x <= 100:
            raise ValueError(f"{place}: a recall of the best epoch is no percentage")
    rows = [f"| {way} | {' | '.join('–' if x is None else f'{x:.1f}' for x in row)} |" for way, row in found.items()]
    text = f"Of the development split, in percent, after epoch {entry.get('epoch')}, the best one."
    return "\n".join([text, "", "| | R@1 | R@5 | R@10 |", "|---|---:|---:|---:|", *rows])
