"""Replacing functions wherever a package holds them, in packages that the test makes up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from crossret.compat import colpali, pylate, sentence_transformers
from crossret.compat.patching import Patch

SOURCES = {
    "made_up": "",
    "made_up.scores": "def score(x): return x\nclass Scorer:\n    @staticmethod\n    def both(x): return score(x)\n",
    "made_up.losses": (
        "from made_up.scores import Scorer, score\n"
        "def loss(x, metric=score, *, other=score): return metric(x) + other(x)\n"
        "class Loss:\n    metric = score\n    def __init__(self, metric=score): self.metric = metric\n"
    ),
    "made_upper": "from made_up.scores import score\n",
}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    modules = {}
    for name, source in SOURCES.items():
        modules[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, modules[name])
        exec(source, vars(modules[name]))
    yield modules


def ours(x: int) -> int:
    return -x


def state(modules: dict[str, ModuleType]) -> list[Any]:
    """Every object that the modules hold, by identity."""
    losses, scores = modules["made_up.losses"], modules["made_up.scores"]
    return [
        scores.score, vars(scores.Scorer)["both"], losses.score, *losses.loss.__defaults__,
        losses.loss.__kwdefaults__["other"], *losses.Loss.__init__.__defaults__, vars(losses.Loss)["metric"],
        modules["made_upper"].score,
    ]  # fmt: skip


def patch_of(replacements: dict[str, Any]) -> Patch:
    return Patch("made_up", "made-up>=2", "pip install made-up", replacements)


def test_every_place(made_up: dict[str, ModuleType]) -> None:
    both = staticmethod(ours)
    patch = patch_of({"made_up.scores:score": ours, "made_up.scores:Scorer.both": both})
    before = state(made_up)
    for _ in range(2):
        patch.patch()
        assert [id(own) for own in state(made_up)] == [id(own) for own in [ours, both, *[ours] * 5, before[-1]]]
    assert made_up["made_up.losses"].loss(2) == -4
    late = ModuleType("made_up.late")
    sys.modules["made_up.late"] = late
    exec("from made_up.scores import score", vars(late))
    assert late.score is ours
    for _ in range(2):
        patch.unpatch()
        assert [id(own) for own in state(made_up)] == [id(own) for own in before]
    assert late.score is before[0]
    del sys.modules["made_up.late"]


def test_another_version_is_left_alone(made_up: dict[str, ModuleType]) -> None:
    before = state(made_up)
    patch = patch_of({"made_up.scores:score": ours, "made_up.scores:gone": ours})
    with pytest.raises(ImportError, match=r"made-up has no made_up\.scores:gone: patch\(\) wants made-up>=2; pip"):
        patch.patch()
    patch.unpatch()
    assert [id(own) for own in state(made_up)] == [id(own) for own in before]


def _held(package: str) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == package]


@pytest.mark.parametrize(
    ("compat", "advice"),
    [
        (colpali, r"colpali-engine>=0\.3\.18 is not installed: pip install 'crossret\[colpali\]'$"),
        (
            pylate,
            r"pylate>=1\.6 is not installed: .*'crossret\[pylate\]'.* torch 2\.11.* pip install --no-deps pylate fast",
        ),
        (
            sentence_transformers,
            r"sentence-transformers>=6 is not installed: pip install 'crossret\[sentence-transformers",
        ),
    ],
)
def test_packages_are_needed_for_patching_alone(
    compat: ModuleType, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("colpali_engine", "pylate", "sentence_transformers"):
        for name in [package, *_held(package)]:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=advice):
        compat.patch()
    compat.unpatch()
