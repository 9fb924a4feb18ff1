"""Every mistake is one line and exit code 2, told before anything is done; a bug is not a mistake."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

from crossret import cli
from crossret.cli import suggestions
from crossret.cli.commands.application import app
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.hyperparameters.settings import settable
from tests.cli.command import Cli, run

TRAIN = "train {data} --output {tmp}/run"
TUNE = f"{TRAIN} --fine-tune {{trained}}"
EVALUATE = "evaluate {trained} {data}"
SEARCH = "search {trained} {data}"
SCORE = "score {trained} {data} --output {tmp}/y.npy"
OTHER_INPUT = "what is written would take the place of this input"
MISTAKES = [
    ("trian", "No such command 'trian'"),
    ("train {data}", "Missing option '--output'"),
    ("train {tmp}/absent --output {tmp}/run", "absent"),
    ("train {spoilt} --output {tmp}/run", "{spoilt}/train_ims.npy: item 7 has features that are not"),
    (f"{TRAIN} --word-vectors {{text}}", "train_caps.txt"),
    (f"{TRAIN} --log csv --log excel", "--log must be one of csv, tensorboard, wandb, not 'excel'"),
    (f"{TRAIN} --set epochs=1 --epochs 2", "epochs is set twice"),
    (f"{TRAIN} --loss infonce --set loss=sigmoid", "loss is set twice"),
    (f"{TRAIN} --loss infonce --set margin=0.3", "margin=0.3 makes no difference to this scan: leave it out, or "),
    (f"{TRAIN} --learning-rate nan", "learning_rate must be a number, not 'nan'"),
    (f"{TRAIN} --model mhsan --set feature_dim=16777216", "make a model that takes"),
    (f"{TRAIN} --device cpu --gpu-features 2", "--gpu-features makes no difference on the CPU"),
    (f"{TUNE} --set embed_dim=16", "'image.fc.weight' is (8, 6) torch.float32; with the hyper-parameters"),
    (f"{TUNE} --model han", "--model han: the model of --fine-tune"),
    (f"{TUNE} --min-count 3", "--min-count makes no difference with --fine-tune"),
    (f"{TUNE} --vocabulary {{text}}", "--vocabulary makes no difference with --fine-tune"),
    (f"{TUNE} --word-vectors {{text}}", "--word-vectors makes no difference with --fine-tune"),
    ("evaluate {trained} {fold} --five-fold", "--five-fold: the 7 images"),
    (f"{EVALUATE} --folds 3", "--folds: the 10 images of test cannot be divided into 3 equal folds"),
    (f"{EVALUATE} --folds 2 --five-fold", "--folds cannot go with --five-fold, which is five folds"),
    (f"{EVALUATE} --output {{tmp}}/absent/figures.json", "no directory {tmp}/absent"),
    (f"{EVALUATE} --scores {{tmp}}/absent/y.npy", "no directory {tmp}/absent"),
    (f"{EVALUATE} --scores {{tmp}}/y --output {{tmp}}/y", "--scores and --output name the same file"),
    (f"{EVALUATE} --ensemble {{made}}/few.npy", "few.npy: 10 images and 50 captions have scores of"),
    ("evaluate {made}/nan.npy {data}", "nan.npy: the score in row 3, column 7 is nan, not finite in float32"),
    ("evaluate {made}/few.npy {data} --device cpu", "--device is for models, not for files of scores"),
    ("evaluate {tmp} {data}", "model.safetensors: no such file"),
    ("search {data}", "exactly one of --queries, --words, --regions is needed"),
    ("search {trained} {data} {data} --caption a", "{data}: of directories there are"),
    (SEARCH, "exactly one of --caption, --captions, --image, --queries, --words, --regions is needed"),
    (f"{SEARCH} --caption a --sum-max", "--sum-max is for a corpus of features, without RUN"),
    (f"{SEARCH} --caption a --caption ' '", "--caption 2: the caption is empty"),
    (f"{SEARCH} --caption '{'a ' * 1025}'", "--caption 1: the caption has 1,025 words, more than the 1,024 that"),
    (f"{SEARCH} --captions {{data}}/test_ims.npy", "test_ims.npy, line 1: not UTF-8"),
    (f"{SEARCH} --image 10", "image 10: the corpus has images 0 to 9"),
    (f"{SEARCH} --captions {{text}} --output {{text}}", OTHER_INPUT),
    (f"{SEARCH} --caption a --output {{trained}}/best/model.safetensors", f"model.safetensors: {OTHER_INPUT}"),
    ("search {trained} {encoded}/captions --caption a", "holds encoded captions, not images"),
    ("search {trained} {encoded} --caption a --split dev", "--split is for data, but"),
    (
        "search {encoded}/images --words {encoded}/captions --output {encoded}/captions/values.npy",
        f"captions/values.npy: {OTHER_INPUT}",
    ),
    ("search {trained} {features} --caption a", "features: features, but no model.json of `encode`: search them"),
    (
        "search {features} --words {made}/wide.npy --query-lengths {made}/wide.npy",
        "--query-lengths is not for --words",
    ),
    (
        "search {features} --queries {made}/wide.npy --candidates {made}/candidates.npy",
        "wide.npy: 9 dimensions, but",
    ),
    ("score --output {tmp}/y.npy", "--regions and --words are needed, or RUN and DATA"),
    ("score --split dev --output {tmp}/y.npy", "--split needs RUN"),
    (f"{SCORE} --lambda-softmax 9", "--lambda-softmax is for files of features, without RUN"),
    ("score {trained} {data} --output {data}/dev_ims.npy", f"dev_ims.npy: {OTHER_INPUT}"),
    ("score {mhsan} {encoded} --output {tmp}/y.npy", "encoded by scan, but the model is mh"),
    ("encode {trained} {data} --output {data}/out", "{data}/out: is {data} or inside it"),
    ("shard {encoded} --output {tmp}/out --shards 2", "{encoded}: holds encoded images and captions; name the"),
    ("perturb {data} --output {tmp}/out", "of --shuffle and --drop exactly one is needed"),
    ("perturb {data} --output {tmp}/out --shuffle --tagger x", "--tagger makes no difference to --shuffle"),
    ("perturb {data} --output {tmp}/out --drop verb", "pip install 'crossret[pos]'"),
    ("cluster-regions {empty} --output {tmp}/out", "{empty}: no SPLIT_ims.npy in it"),
    ("cluster-regions {data} --output {tmp}/out --clusters 4", "dev_ims.npy: clusters must be 1 to its 3 regions"),
    (
        "cluster-regions {spoilt} --output {tmp}/out --clusters 2",  # the last split
        "{spoilt}/train_ims.npy: row 7 has features that are not finite",
    ),
    ("demo --output {data}", "{data}: not empty, and not an earlier demo's"),
]


@pytest.fixture(scope="module")
def places(data: Path, trained: Path, mhsan: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What commands name."""
    made = tmp_path_factory.mktemp("made")
    for name in ("fold", "features", "empty"):
        (made / name).mkdir()
    np.save(made / "fold" / "test_ims.npy", np.zeros((7, 3, 6), np.float32))
    (made / "fold" / "test_caps.txt").write_text("a picture\n" * 35)
    np.save(made / "features" / "features.npy", np.ones((2, 3, 6), np.float32))
    shutil.copytree(data, made / "spoilt")
    features = np.load(data / "train_ims.npy")
    features[7, 0, 1] = np.nan
    np.save(made / "spoilt" / "train_ims.npy", features)
    np.save(made / "wide.npy", np.ones((4, 3, 9), np.float32))
    np.save(made / "candidates.npy", np.zeros((4, 2), np.int64))
    scores = np.zeros((10, 50), np.float32)
    np.save(made / "few.npy", scores[:9])
    scores[3, 7] = np.nan
    np.save(made / "nan.npy", scores)
    run("encode", trained, data, "--output", made / "encoded")
    own = {name: made / name for name in ("fold", "features", "empty", "spoilt", "encoded")}
    return {**own, "data": data, "trained": trained, "mhsan": mhsan, "made": made, "text": data / "train_caps.txt"}


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    crossret: Cli,
    places: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    message: str,
) -> None:
    def scored(*_: object, **__: object) -> None:
        raise AssertionError("scored")

    monkeypatch.setattr("crossret.evaluation.encode_dataset", scored)
    monkeypatch.setitem(sys.modules, "spacy", None)
    there = {**places, "tmp": tmp_path}
    err = crossret.refused(*(word.format_map(there) for word in shlex.split(command)))
    assert message.format_map(there) in err
    assert not any(tmp_path.iterdir())


HOSTILE = {"controls": "\x1b]0;mine\x07\x1b[2J\r\u202e", "length": "x" * 300_000, "words": "xx yy " * 50_000}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "command",
    [
        "{hostile}",
        "train {data} --output {tmp}/run --set pooling={hostile}",
        "train {data} --output {tmp}/run --config {tmp}/key.toml",
        "compare {data} 'scan {hostile}=1' --output {tmp}/run",
        "import-scan {tmp}/x.pth --output {tmp}/run --vocabulary {tmp}/vocab.json",
        "evaluate {tmp}/model {data}",
    ],
)
def test_text_of_others_is_shown_and_not_obeyed(
    crossret: Cli, data: Path, tmp_path: Path, command: str, hostile: str
) -> None:
    (tmp_path / "key.toml").write_text(f"{json.dumps(hostile)} = 1\n")
    (tmp_path / "vocab.json").write_text(json.dumps({"word2idx": {hostile: "x"}, "idx2word": {}, "idx": 1}))
    weights, meta = torch.zeros(1), {"model": json.dumps({"model": hostile, "config": {}}), "words": "[]"}
    save_file({"x": weights}, (tmp_path / "model").mkdir() or tmp_path / "model" / "model.safetensors", meta)
    places = {"data": data, "tmp": tmp_path, "hostile": hostile}
    line = crossret.refused(*(word.format_map(places) for word in shlex.split(command))).removesuffix("\n")
    assert line.isprintable()
    assert len(line) <= 1010
    assert max(len(word) for word in line.split()) <= 200
    assert line.count("yy") <= 200


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --lr 1", "No such option: --lr; did you mean --learning-rate?"),
        ("train --gpu 1", "No such option: --gpu; did you mean --device?"),
        ("search -o 1", "No such option: -o; did you mean --output?"),
        ("train --epohcs 1", "No such option: --epohcs; did you mean --epochs?"),
        ("train --layers 1", "No such option: --layers; did you mean --set layers=...?"),
        ("train --no-bidirectional", "No such option: --no-bidirectional; did you mean --set bidirectional=...?"),
        ("evaluate --model 1", "No such option: --model; did you mean RUN, which is given without a name?"),
        ("search --lr", "No such option: --lr (Possible options: --help, --html, --ray)"),  # it learns nothing
        ("train --frobnicate", "No such option: --frobnicate"),
        ("train --seed", "Option '--seed' requires an argument."),
    ],
)
def test_an_option_of_another_name_is_suggested_by_what_it_means(crossret: Cli, command: str, message: str) -> None:
    assert crossret.refused(*command.split()) == f"crossret: {message}\n"


def test_every_name_that_is_suggested_is_there() -> None:
    commands = typer.main.get_command(app).commands.values()
    there = {name for command in commands for each in command.params for name in (*each.opts, *each.secondary_opts)}
    settings = {name for config in MODEL_CONFIGS.values() for name in settable(config)}
    assert set(suggestions._CALLED) <= there | settings


def test_an_unavailable_backend_is_a_mistake(
    crossret: Cli, data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSRET_BACKEND", "no-such-backend")
    assert "no-such-backend" in crossret.refused("evaluate", trained, data)


def test_memory_that_cannot_be_had_is_a_mistake(
    crossret: Cli, data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossret.evaluation.encode_dataset", lambda *_, **__: torch.empty(2**60))
    assert "not enough memory" in crossret.refused("evaluate", trained, data)


def test_the_place_of_a_mistake_is_shown_on_demand(crossret: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    command, message = ("search", ".", "--caption", "x"), "crossret: --caption needs RUN, a model, before CORPUS"
    assert crossret.refused(*command) == f"{message}\n"
    monkeypatch.setenv("CROSSRET_TRACEBACK", "1")
    assert crossret(*command) == 2
    assert crossret.err.startswith("Traceback (most recent call last)")
    assert crossret.err.splitlines()[-1] == message


def test_a_bug_is_not_dressed_up_as_a_mistake(monkeypatch: pytest.MonkeyPatch, data: Path, trained: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("crossret.evaluation.encode_dataset", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["evaluate", str(trained), str(data)])
