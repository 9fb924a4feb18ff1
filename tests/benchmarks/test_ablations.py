"""The ablations' table: every variant can be trained, and the verdict follows the stated rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import ablations
from benchmarks.ablations import ABLATIONS, Ablation, judge, margin, markdown, row, run, sized
from crossret.comparison.comparison import directory_of
from crossret.files.json import write_json_lines
from crossret.hyperparameters.settings import parse_variant
from crossret.training.callbacks import STEP_FIELDS

DATA = {"train": {"images": 400, "captions": 2000}, "test": {"images": 100, "captions": 500}}


def result(variant: str, i2t: float, t2i: float, diversity: float) -> dict[str, Any]:
    retrieval = {"i2t_r1": i2t, "t2i_r1": t2i, "rsum": 3 * (i2t + t2i)}
    return {
        "variant": variant,
        "model": variant.split()[0],
        "evaluation": retrieval,
        "log": [{**dict.fromkeys(STEP_FIELDS, 1), "kind": "step", "loss": 9.0, "diversity": diversity}],
    }


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda each: f"{each.source}: {each.change}")
def test_both_variants_of_every_ablation_are_models(ablation: Ablation) -> None:
    full, ablated = (parse_variant(sized(name), "scenes")[1] for name in (ablation.full, ablation.ablated))
    assert full.model == ablated.model
    sizes = {"image_dim": 6, "vocabulary_size": 9}
    assert full.config(**sizes) != ablated.config(**sizes)
    assert full.training() == ablated.training()


def test_verdicts() -> None:
    assert judge(5.0, 3.0, 2.0) == judge(-5.0, -3.0, 2.0) == "agrees"
    assert judge(5.0, -3.0, 2.0) == judge(-5.0, 3.0, 2.0) == "disagrees"
    assert judge(5.0, 1.0, 2.0) == "within noise (agrees)"
    assert judge(5.0, -1.0, 2.0) == "within noise (disagrees)"
    assert margin(50.0, 50.0, 100) == pytest.approx(2 * (2 * 50 * 50 / 100) ** 0.5)
    assert margin(0.0, 100.0, 100) == 0


def test_a_run_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [next(each for each in ABLATIONS if each.full == kind) for kind in ("mhsan", "oan")]
    seen: list[str] = []

    def compared(variants: Any, conditions: Any, output: Path, **_: Any) -> dict[str, Any]:
        seen[:] = variants
        recalls = [(60.0, 50.0, 5.0), (20.0, 51.0, 6.0), (90.0, 80.0, 0.0), (80.0, 90.0, 0.0)]
        results = [result(name, *figures) for name, figures in zip(seen, recalls, strict=True)]
        for each in results:
            directory_of(output, each["variant"]).mkdir()
            write_json_lines(directory_of(output, each["variant"]) / "log.jsonl", each.pop("log"))
        return {"data": DATA, "variants": results}

    monkeypatch.setattr(ablations, "run_comparison", compared)
    report = run(tmp_path, tmp_path, ablations=chosen, command="typed", console=Console(quiet=True))
    assert seen == [sized(name) for each in chosen for name in (each.full, each.ablated)]
    mhsan, oan = report["rows"]
    assert mhsan["r1"]["i2t"]["verdict"] == "agrees"
    assert mhsan["r1"]["t2i"]["verdict"] == "within noise (disagrees)"
    assert mhsan["diversity"]["verdict"] == "agrees"
    assert "verdict" not in oan["r1"]["i2t"]  # the paper has no such figure
    assert oan["r1"]["t2i"]["verdict"] == "disagrees"
    text = (tmp_path / "ablations.md").read_text()
    assert text == markdown(report)
    assert "73.5 → 72.3, 60.0 → 20.0 | 59.1 → 58.4, 50.0 → 51.0 | 330.0 → 213.0 | agrees: +40.0 ± " in text
    assert "5.59 → 7.36 on the test set, ours 5.00 → 6.00 in the last epoch of training: agrees" in text
    assert row(chosen[0], {name: result(name, 1.0, 1.0, 1.0) for name in seen}, {"i2t": 1, "t2i": 1})["rsum"] == [6, 6]
