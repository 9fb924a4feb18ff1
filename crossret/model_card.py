"""The model card of a saved model: what it is, how it is used, and how it came about."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from crossret.data.vocabulary import Vocabulary
from crossret.files.atomic import atomic_write
from crossret.files.json import read_json_lines
from crossret.files.toml import read_toml
from crossret.models.protocol import Matcher
from crossret.models.texts import reads_texts

CARD = "README.md"
_LOG, _SETTINGS = "log.jsonl", "run.toml"  # a run's files
_PATHS = ("data", "fine_tune", "word_vectors", "vocabulary", "encoder", "text_encoder")  # among the settings
_RECALLS = ("r1", "r5", "r10")

_USE = """\
```python
import crossret

retriever = crossret.load("{name}")
images = retriever.encode_images(features)  # (n, R, {image_dim}) region features
scores, indices = retriever.search({captions}, images, k=10)
```
"""
_TEXTS = '["a dog on the grass"]'
_TOKENS = "retriever.model.encode_captions(tokens, lengths)"


def write_card(
    directory: Path, name: str, model: Matcher, vocabulary: Vocabulary | None, run: Path | None = None
) -> None:
    """Write ``README.md`` into a model's directory: with the figures and settings of ``run``, where one trained it.

    Cards are published: of the files that settings name the last part of the path is told.

    Args:
        directory: the model's.
        name: the name by which it is loaded.
        model, vocabulary: the model and its words.
        run: the output directory of its training.

    Raises:
        OSError: a file cannot be read or written. ValueError: the run's log is malformed.
    """
    title = str(sys.modules[type(model).__module__].__doc__).strip().rstrip(".")
    read = (
        f"captions as tokens of {model.config.text_dim:,} numbers"
        if vocabulary is None
        else f"{len(vocabulary):,} words"
    )
    captions = _TEXTS if reads_texts(model, vocabulary) else _TOKENS
    weights = sum(parameter.numel() for parameter in model.parameters())
    parts = [
        f"---\nlibrary_name: crossret\ntags:\n- image-text-matching\n- cross-modal-retrieval\n- {model.kind}\n---",
        f"# {title}",
        f"{weights:,} weights, {read}, region features of {model.config.image_dim:,} numbers.",
        _USE.format(name=name, image_dim=model.config.image_dim, captions=captions).rstrip(),
        *_training(run),
        "## Hyper-parameters",
        f"```json\n{model.config.to_json()}\n```",
    ]
    with atomic_write(directory / CARD) as file:
        file.write(("\n\n".join(parts) + "\n").encode())


def _training(run: Path | None) -> list[str]:
    """Sections on the training: its figures and settings, as far as the run has their files."""
    parts = []
    if run is not None and (run / _LOG).is_file():
        best = [entry for entry in read_json_lines(run / _LOG) if entry.get("kind") == "epoch" and entry.get("best")]
        parts += [] if not best else ["## Figures", _figures(best[-1], run / _LOG)]
    if run is not None and (run / _SETTINGS).is_file():
        settings = read_toml(run / _SETTINGS)
        paths = [name for name in _PATHS if Path(str(settings.get(name, ""))).is_absolute()]  # others are of the Hub
        settings |= {name: Path(settings[name]).name for name in paths}
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
