"""Comparisons: variants are parsed strictly, finished ones are kept, figures are the same in every place."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from crossret.comparison import comparison
from crossret.comparison.comparison import Conditions, directory_of, run_comparison
from crossret.comparison.plot import comparison_figure, draw_comparison
from crossret.comparison.process import run_step
from crossret.comparison.steps import Step, _Clock, evaluate_variant, last_terms, train_variant
from crossret.comparison.table import comparison_table, markdown
from crossret.comparison.variants import Variant, parse_variant
from crossret.data import render_scenes

pytestmark = pytest.mark.usefixtures("one_thread")

SCAN = parse_variant("scan embed_dim=8 word_dim=4 epochs=2 batch_size=16 log_every=2", "scenes")
MHSAN = parse_variant("mhsan feature_dim=8 embed_dim=8 word_dim=4 attention_dim=4 heads=2 epochs=1", "scenes")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("comparison") / "scenes"
    render_scenes(directory, train=8, dev=4, test=4, seed=0, workers=1)
    return directory


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that ran, in this process; one named here beforehand is interrupted instead."""
    ran: list[str] = []
    functions = {"train": train_variant, "evaluate": evaluate_variant}

    def run(name: str, step: Step) -> dict[str, Any]:
        if f"no {name} {step.model}" in ran:
            raise KeyboardInterrupt
        ran.append(f"{name} {step.model}")
        return functions[name](step)

    monkeypatch.setattr(comparison, "run_step", run)
    return ran


def compare(variants: list[Variant], scenes: Path, output: Path, **conditions: Any) -> tuple[dict[str, Any], str]:
    console = Console(file=StringIO(), width=200)
    report = run_comparison(variants, Conditions(scenes, **conditions), output, command="typed", console=console)
    return report, console.file.getvalue()  # type: ignore[attr-defined]


def test_fields_have_the_types_of_the_configs() -> None:
    variant = parse_variant("han p=4 clusters=none layers=3 decay_epochs=2,3 learning_rate=5e-4", "scenes")
    assert variant.fields == {"clusters": None, "layers": 3, "p": 4.0}
    assert variant.schedule == {"decay_epochs": (2, 3), "learning_rate": 5e-4}
    assert variant.name == "han clusters=none layers=3 p=4 decay_epochs=2,3 learning_rate=5e-4"
    assert parse_variant("mhsan gradient_norm=none patience=none", "f30k").training(0, None).gradient_norm is None
    assert parse_variant("scan bidirectional=false", "scenes").fields == {"bidirectional": False}
    assert parse_variant("oan intra_negatives=none", "scenes").fields == {"intra_negatives": "none"}
    assert parse_variant("scan decay_epochs=", "scenes").schedule == {"decay_epochs": ()}


def test_a_variant_starts_from_its_preset() -> None:
    variant = parse_variant("oan preset=f30k_no_inter gamma=0.5", "scenes")
    assert variant.preset == "f30k_no_inter"
    assert not replace(variant, fields={}).config(image_dim=6, vocabulary_size=9).inter_attention  # type: ignore[attr-defined]
    assert variant.training(seed=3, epochs=None).epochs == 24
    assert variant.training(seed=3, epochs=2).epochs == 2
    assert parse_variant("oan epochs=7", "scenes").training(seed=3, epochs=2).epochs == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "variant '': the model must be one of scan, sman, han, mhsan, oan, vse, not ''"),
        ("clip", "variant 'clip': the model must be one of"),
        ("scan layers=1", "variant 'scan layers=1': scan has no field 'layers'"),
        ("scan seed=1", "scan has no field 'seed'"),
        ("scan image_dim=1", "scan has no field 'image_dim'"),
        ("scan margin", "'margin' is not of the form field=value"),
        ("scan margin=1 margin=2", "margin is set twice"),
        ("han layers=1.5", "layers must be a whole number, not '1.5'"),
        ("han clusters=", "clusters must be a whole number or none, not ''"),
        ("scan gradient_norm=off", "gradient_norm must be a number or none, not 'off'"),
        ("scan margin=none", "margin must be a number, not 'none'"),
        ("han layers=1_0", "layers must be a whole number, not '1_0'"),
        ("han p=many", "p must be a number, not 'many'"),
        ("scan learning_rate=nan", "learning_rate must be a number, not 'nan'"),
        ("scan decay_epochs=1,2_0", "decay_epochs must be whole numbers between commas, not '1,2_0'"),
        ("scan negatives=easy", "negatives must be one of hardest, sum, not 'easy'"),
        ("scan bidirectional=1", "bidirectional must be true or false, not '1'"),
        ("scan decay_epochs=1;2", "decay_epochs must be whole numbers between commas, not '1;2'"),
    ],
)
def test_mistakes_name_variant_and_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^variant ") as error:
        parse_variant(text, "scenes")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scan margin=-1", "margin must be at least 0"),
        ("scan lambda_lse=3", "lambda_lse makes no difference to this scan"),
        ("scan preset=f31k", "preset must be one of f30k_t2i_avg"),
        ("scan epochs=0", "epochs must be at least 1"),
        ("scan learning_rate=-1", "learning_rate must be greater than 0"),
    ],
)
def test_values_out_of_range_name_the_variant(text: str, message: str) -> None:
    variant = parse_variant(text, "scenes")
    with pytest.raises(ValueError, match=f"^variant '{text}': {message}"):
        variant.config(image_dim=6, vocabulary_size=9), variant.training(0, None)


def test_terms_are_those_of_the_last_epoch_with_steps() -> None:
    step = {"kind": "step", "learning_rate": 1.0, "gradient_norm": 1.0}
    log = [
        {**step, "epoch": 1, "step": 1, "loss": 9.0, "diversity": 9.0},
        {"kind": "epoch", "epoch": 1, "step": 1, "loss": 9.0},
        {**step, "epoch": 2, "step": 2, "loss": 1.0, "diversity": 3.0},
        {**step, "epoch": 2, "step": 3, "loss": 2.0, "diversity": 5.0},
        {"kind": "epoch", "epoch": 2, "step": 3, "loss": 1.5},
    ]
    assert last_terms(log) == {"loss": 1.5, "diversity": 4.0}
    assert last_terms([log[1]]) == {"loss": 9.0}


def test_what_a_comparison_leaves_behind(scenes: Path, tmp_path: Path, steps: list[str]) -> None:
    report, printed = compare([SCAN, MHSAN], scenes, tmp_path / "new" / "out")
    output = tmp_path / "new" / "out"
    assert json.loads((output / "compare.json").read_text()) == report
    scan, mhsan = report["variants"]
    assert (scan["config"]["embed_dim"], scan["schedule"]["epochs"]) == (8, 2)
    assert scan["evaluation"]["scoring"]["pairs"] == 4 * 20
    assert scan["evaluation"]["pointing_game"]["map"] == "t2i"
    assert mhsan["evaluation"]["pointing_game"]["query"] == "all"
    assert scan["training"]["epochs"] == 2
    assert scan["training"]["seconds_known"]
    assert scan["training"]["peak_mebibytes"] > 50
    assert mhsan["training"]["loss"].keys() >= {"loss"}
    weights = (directory_of(output, SCAN) / "best" / "model.safetensors").stat().st_size
    assert 0 < 4 * scan["training"]["parameters"] < weights
    for text in (printed, (output / "compare.md").read_text()):
        assert f"{scan['evaluation']['retrieval']['rsum']:.1f}" in text
        assert SCAN.name in " ".join(text.split())
    with Image.open(output / "compare.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 50


def test_finished_variants_are_not_run_again(scenes: Path, tmp_path: Path, steps: list[str]) -> None:
    steps.append("no evaluate mhsan")
    with pytest.raises(KeyboardInterrupt):
        compare([SCAN, MHSAN], scenes, tmp_path)
    assert [result["model"] for result in json.loads((tmp_path / "compare.json").read_text())["variants"]] == ["scan"]
    assert steps[1:] == ["train scan", "evaluate scan", "train mhsan"]
    steps.clear()
    report, printed = compare([SCAN, MHSAN], scenes, tmp_path)
    assert steps == ["evaluate mhsan"]
    assert f"{SCAN.name} (1 of 2): finished before" in printed
    assert [result["model"] for result in report["variants"]] == ["scan", "mhsan"]


def test_results_of_other_settings_are_refused(scenes: Path, tmp_path: Path, steps: list[str]) -> None:
    compare([MHSAN], scenes, tmp_path)
    with pytest.raises(ValueError, match=r"^variant 'mhsan .*: .*settings.json has schedule.seed 0, not 1; choose"):
        compare([MHSAN], scenes, tmp_path, seed=1)
    with pytest.raises(ValueError, match="given twice"):
        compare([MHSAN, MHSAN], scenes, tmp_path)
    assert len(steps) == 2
    settings = directory_of(tmp_path, MHSAN) / "settings.json"
    settings.write_text(settings.read_text().replace("{", '{"mine": 1,', 1))
    with pytest.raises(ValueError, match=r"settings.json has mine 1, not None; choose another directory"):
        compare([MHSAN], scenes, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"variant": 1}', '{"training": [], "evaluation": {}}', '{"training": {"seconds": Infinity}}', "[]", "{"],
)
def test_a_result_that_is_none_is_named(scenes: Path, tmp_path: Path, steps: list[str], text: str) -> None:
    directory = directory_of(tmp_path, MHSAN)
    directory.mkdir()
    (directory / "result.json").write_text(text)
    with pytest.raises(ValueError, match=rf"^{directory}/result.json: not "):
        compare([MHSAN], scenes, tmp_path)
    assert steps == []


@pytest.mark.parametrize("text", ["{}", '{"seconds": "1", "seconds_known": true, "sessions": 1}'])
def test_a_clock_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(ValueError, match=r"training.json: its seconds is (None|'1'), not float"):
        _Clock(tmp_path / "training.json", resume=True)


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ims", "{split}_ims.npy: item 3 has features that are not finite in float32"),
        ("boxes", "{split}_boxes.npy, row 3: the box of region 1 is not finite in float32"),
        ("missing", "variant 'sman': .*{split}_boxes.npy: no such file, but"),
        ("regions", "variant 'scan region_count=40': .*train_ims.npy: images have .* regions, fewer than"),
    ],
)
def test_what_is_wrong_in_any_split_is_found_before_the_first_training(
    scenes: Path, tmp_path: Path, steps: list[str], split: str, name: str, message: str
) -> None:
    shutil.copytree(scenes, tmp_path / "data")
    path = tmp_path / "data" / f"{split}_{name}.npy"
    if path.exists():
        array = np.load(path)
        array[3, 1, 2] = np.nan
        np.save(path, array)
    elif name == "missing":
        (tmp_path / "data" / f"{split}_boxes.npy").unlink()
    others = {"missing": "sman", "regions": "scan region_count=40"}
    variants = [SCAN, parse_variant(others.get(name, "oan"), "scenes")]
    with pytest.raises(ValueError, match=message.format(split=split)):
        compare(variants, tmp_path / "data", tmp_path / "out")
    assert not steps
    assert not (tmp_path / "out").exists()


def test_an_interrupted_training_adds_up(
    scenes: Path, tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = directory_of(tmp_path, SCAN)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("crossret.training.validation.encode_dataset", interrupted)  # as the first epoch is validated
        compare([SCAN], scenes, tmp_path)
    before = json.loads((directory / "training.json").read_text())
    assert (before["finished"], before["sessions"], before["seconds_known"]) == (False, 1, True)
    (directory / "training.json").write_text(json.dumps({**before, "seconds": 1000.0}))
    result = compare([SCAN], scenes, tmp_path)[0]["variants"][0]
    assert result["training"]["seconds"] > 1000
    assert (result["training"]["sessions"], result["training"]["seconds_known"]) == (2, True)
    assert re.search(r"1,00\d\* \(2 × 50\d\.", (tmp_path / "compare.md").read_text())


def test_seconds_of_a_killed_training_are_not_known(scenes: Path, tmp_path: Path, steps: list[str]) -> None:
    compare([MHSAN], scenes, tmp_path)
    directory = directory_of(tmp_path, MHSAN)
    (directory / "result.json").unlink()
    (directory / "training.json").write_text('{"seconds": 5000.0, "seconds_known": true, "sessions": 1, '
                                             '"running": true, "finished": false, "peak_mebibytes": 1.0}')  # fmt: skip
    training = compare([MHSAN], scenes, tmp_path)[0]["variants"][0]["training"]
    assert (training["seconds_known"], training["sessions"]) == (False, 2)
    assert re.search(r"> 5,0\d\d\* \(1 × 50\d\d\.", (tmp_path / "compare.md").read_text())


def test_a_step_s_mistake_and_death_are_errors(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step("scan", {}, {}, scenes, "test", tmp_path, 1)
    with pytest.raises(ValueError, match="ScanConfig lacks the field 'image_dim'"):
        run_step("train", step)
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr("crossret.comparison.process._PROGRAM", program)
    with pytest.raises(ChildProcessError, match="the process to train it was killed by SIGKILL, perhaps for want"):
        run_step("train", step)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("count", [1, 20])
def test_pictures_and_tables_of_few_and_many(tmp_path: Path, count: int) -> None:
    retrieval = {f"{way}_r{rank}": 12.34 for way in ("i2t", "t2i") for rank in (1, 5, 10)}
    evaluation = {
        "retrieval": {**retrieval, "rsum": 74.04},
        "pointing_game": None,
        "scoring": {"pairs_per_second": 1.234e6, "seconds": 4.05},
        "peak_mebibytes": 1024.0,
        "machine": {"cpu": "some CPU", "threads": 1, "torch": "2"},
    }
    training = {"seconds": 100.0, "seconds_known": True, "sessions": 1, "epochs": 4, "parameters": 12_345,
                "peak_mebibytes": 2048.0}  # fmt: skip
    results = [{"variant": f"scan margin={i}", "training": training, "evaluation": evaluation} for i in range(count)]
    draw_comparison(tmp_path / "picture.png", results)
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.width == 1216
        assert picture.height == pytest.approx(160 * (1.0 + 0.42 * count), abs=2)
    sizes = {"images": 4, "captions": 20}
    report = {"variants": results, "data": {"train": sizes, "test": sizes}, "split": "test", "seed": 0,
              "command": "typed", "crossret": "0"}  # fmt: skip
    recalls = "12.3 / 12.3 / 12.3 | 12.3 / 12.3 / 12.3"
    row = f"| {recalls} | 74.0 | – | 12.3 k | 100 (4 × 25.0) | 4.0 (1.23 M) | 2,048 / 1,024 |"
    assert markdown(report).count(row) == count
    console = Console(file=StringIO(), width=80)
    console.print(comparison_table(report))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert sum(line.rstrip().endswith("2,048") for line in lines) == count


def comparison_of(*variants: tuple[str, float, float, float]) -> list[dict[str, Any]]:
    """Results of these: name, R@1 both ways, seconds."""
    return [
        {
            "variant": name,
            "training": {"seconds": seconds},
            "evaluation": {"retrieval": {"i2t_r1": sentences, "t2i_r1": images}},
        }
        for name, sentences, images, seconds in variants
    ]


@pytest.mark.parametrize(
    ("longest", "ticks"), [(0.0, ["0"]), (2.1, ["0", "1", "2"]), (53.1, ["0", "20", "40", "60"]),
                           (100.0, ["0", "50", "100"])]
)  # fmt: skip
def test_bars_fill_their_axis_and_recall_ends_at_100(longest: float, ticks: list[str]) -> None:
    figure = comparison_figure(comparison_of(("scan", longest, longest / 2, 7.7), ("han", 0.0, 0.0, 0.41)))
    recall, seconds = figure.axes
    assert [tick.get_text() for tick in recall.get_xticklabels()][: len(ticks)] == ticks
    assert recall.get_xticks()[-1] <= (100 if longest else 1)
    for panel, largest in ((recall, longest), (seconds, 7.7)):
        assert panel.get_xlim() == (0, pytest.approx(1.25 * largest or 1))
        assert {text.get_text() for text in panel.texts} <= {
            f"{longest:.1f}",
            f"{longest / 2:.1f}",
            "0.0",
            "7.7",
            "0.4",
        }


def test_names_and_numbers_of_any_length_are_legible() -> None:
    fields = "embed_dim=1024 raw_feature_norm=clipped_l2norm cross_attention=t2i lambda_softmax=12.5 negatives=sum "
    variants = [("scan " + fields * 3, 100.0, 99.9, 1_234_567.8), ("oan", 0.1, 0.0, 0.4), ("han " + "x" * 90, 1, 1, 1)]
    figure = comparison_figure(comparison_of(*variants))
    figure.set_dpi(160)
    figure.draw_without_rendering()
    recall, seconds = figure.axes
    names = [text for text in recall.get_yticklabels() if text.get_text()]
    assert ["".join(text.get_text().split()) for text in names] == ["".join(name.split()) for name, *_ in variants]
    heights = sorted(text.get_window_extent().intervaly.tolist() for text in names)
    assert all(above[0] >= below[1] for below, above in pairwise(heights))
    for text in [*names, *recall.texts, *seconds.texts]:
        extent = text.get_window_extent()
        assert 0 <= extent.x0 and extent.x1 <= figure.bbox.x1 and 0 <= extent.y0 and extent.y1 <= figure.bbox.y1
    assert [text.get_text() for text in seconds.texts] == ["1,234,568", "0.4", "1.0"]
    # A variant's bars are as high as another's, however long their names.
    assert len({round(bar.get_height(), 9) for bar in recall.patches}) == 1
