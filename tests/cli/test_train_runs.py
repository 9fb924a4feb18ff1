"""crossret train: the settings of a run as a file, fine-tuning, what is said at the start, and what is written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.data import Vocabulary
from crossret.files.toml import read_toml
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.training import load_model
from tests.cli.command import TINY, TINY_MODELS, Cli
from tests.cli.conftest import Asked

OPTIONS = [*TINY, "--epochs", "2", "--decay-epochs", "1", "--patience", "5", "--warmup-steps", "3", "--accumulate", "2"]


@pytest.mark.parametrize("model", ["scan", "han"])
def test_a_run_s_settings_do_the_same_again(
    crossret: Cli, data: Path, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    first, again = tmp_path / "first", tmp_path / "again"
    command = ["train", data.name, "--output", first, "--model", model, *OPTIONS, "--seed", "3", "--min-count", "5"]
    assert crossret(*command, *TINY_MODELS[model], "--log", "csv", "--threads", "1") == 0, crossret.err
    monkeypatch.chdir(tmp_path)  # the data are found from anywhere
    assert crossret("train", "--config", first / "run.toml", "--output", again) == 0, crossret.err
    for path in first.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            assert path.read_bytes() == (again / path.relative_to(first)).read_bytes(), path
    assert crossret("evaluate", first, data) == 0, crossret.err
    assert "test: 10 images" in crossret.out


def test_what_is_typed_beside_a_file_wins(crossret: Cli, data: Path, tmp_path: Path, asked: list[Asked]) -> None:
    settings = tmp_path / "mine.toml"
    settings.write_text(
        f'data = "{data}"\nmodel = "han"\nsettings = ["layers=1 p=2", "epochs=7"]\ndecay_epochs = "2,3"\namp = true\n'
        "learning_rate = 1e-3\nmin_count = 1\nlog = ['tensorboard']\n"
    )
    command = ["train", "--config", settings, "--output", tmp_path / "run"]
    assert crossret(*command, "--epochs", "9", "--no-amp", "--set", "layers=2") == crossret(*command) == 130
    typed, read = asked
    assert (typed.model.kind, typed.model.layers, typed.model.p, read.model.layers) == ("han", 2, 2, 1)
    how = typed.schedule
    assert (how.epochs, how.amp, how.decay_epochs, how.learning_rate) == (9, False, (2, 3), 1e-3)
    assert (read.schedule.epochs, read.schedule.amp) == (7, True)
    assert len(typed.words) > 100
    assert typed.callbacks == ["TensorBoard", "Curves", "Announced"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "mine.toml: train has no setting 'epoch'; did you mean epochs?"),
        ('output = "runs"', "mine.toml: train has no setting 'output'"),
        ('amp = "perhaps"', "mine.toml: amp: "),
        ("settings = [[1]]", "mine.toml: settings: must be a number, a text, true, false or a list of these"),
        ('settings = ["clusters=3"]', "clusters: scan has no such setting; han has"),
        ('data = "nowhere"', "mine.toml: data: "),
        ("epochs =", "mine.toml: not TOML"),
    ],
)
def test_settings_that_are_none_are_named(crossret: Cli, data: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    given = [] if text.startswith("data") else [data]
    assert message in crossret.refused(
        "train", *given, "--config", tmp_path / "mine.toml", "--output", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()


def test_a_choice_typed_beside_a_run_s_settings_brings_its_own(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, asked: list[Asked]
) -> None:
    command = ["train", "--config", trained / "run.toml", "--output", tmp_path / "run"]
    assert crossret(*command, "--preset", "coco_t2i_avg", "--set", "margin=0.4") == 130, crossret.err
    assert crossret(*command, "--model", "han", "--batch-size", "7") == 130, crossret.err
    assert crossret(*command, "--model", "scan", "--preset", "f30k_i2t_lse") == 130, crossret.err
    assert crossret(*command, "--fine-tune", trained) == 130, crossret.err
    coco, han, same, tuned = asked
    vocabulary = {"image_dim": 6, "vocabulary_size": coco.model.vocabulary_size}
    assert coco.model == MODEL_CONFIGS["scan"].preset("coco_t2i_avg", margin=0.4, **vocabulary)
    assert coco.schedule == MODEL_CONFIGS["scan"].schedule("coco_t2i_avg")
    assert han.model == MODEL_CONFIGS["han"].preset("f30k", **vocabulary)
    assert han.schedule == MODEL_CONFIGS["han"].schedule("f30k", batch_size=7)
    assert (same.model.embed_dim, same.schedule.epochs, same.schedule.batch_size) == (8, 2, 16)
    assert tuned.model == load_model(trained / "best")[0].config


def test_settings_are_those_of_a_training_that_was_not_refused(crossret: Cli, data: Path, tmp_path: Path) -> None:
    command = ["train", data, "--output", tmp_path / "run", *TINY]
    assert crossret(*command, "--epochs", "1") == 0
    before = (tmp_path / "run" / "run.toml").read_bytes()
    assert crossret(*command, "--epochs", "2") == 2  # not resumed
    assert crossret(*command, "--epochs", "2", "--seed", "1", "--resume") == 2
    assert (tmp_path / "run" / "run.toml").read_bytes() == before
    assert crossret(*command, "--epochs", "2", "--resume") == 0
    assert "epochs=2" in read_toml(tmp_path / "run" / "run.toml")["settings"]


def test_the_start_says_what_there_is(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command = ["train", data, "--output", tmp_path / "run", *TINY, "--threads", "1", "--min-count", "6"]
    assert crossret(*command, "--epochs", "1") == 0
    facts = dict(line.strip("│ ").split("│", 1) for line in crossret.err.splitlines() if line.startswith("│"))
    facts = {name.strip(): fact.strip() for name, fact in facts.items()}
    assert facts["data"] == str(data)
    assert facts["to train"] == "100 images with 500 captions"
    assert facts["to choose"] == "10 images with 50 captions, by the highest rsum"
    # "picture", five letters and five others 100 times each or more; the numbers of 100 images five times each.
    assert facts["words"] == "15 known; 100 others, 25.0% of the training captions, are <unk>"
    learnt = sum(parameter.numel() for parameter in load_model(tmp_path / "run" / "best")[0].parameters())
    assert facts["model"] == f"scan, {learnt:,} parameters to learn"
    assert facts["on"].startswith("1 thread (")
    assert facts["on"].endswith("), float32")
    assert facts["start"] == "anew: 1 epochs of 32 steps"
    assert crossret(*command, "--epochs", "2", "--resume") == 0
    assert "resumed in epoch 2 after step 32: 2 epochs of 32 steps" in crossret.err
    assert crossret(*command, "--epochs", "2", "--resume") == 0
    assert "finished before: 2 epochs of 32 steps" in crossret.err


def test_a_model_is_told_and_keeps_whether_regions_are_in_spatial_order(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    boxed = tmp_path / "boxed"
    shutil.copytree(data, boxed)
    for split in ("train", "dev"):
        rows = len(np.load(boxed / f"{split}_ims.npy"))
        boxes = np.random.default_rng(0).random((rows, 3, 4), np.float32) + np.float32([0, 0, 1, 1])
        np.save(boxed / f"{split}_boxes.npy", boxes)
    train = ["train", boxed, "--model", "sman", *TINY, "--epochs", "1", "--output"]
    assert crossret(*train, tmp_path / "ordered") == 0, crossret.err
    assert f"in spatial order, from the top down, by {boxed}/train_boxes.npy" in crossret.err
    needed = f"{boxed}/test_boxes.npy: no such file, but the model was made to read regions in the order of their boxes"
    assert crossret.refused("evaluate", tmp_path / "ordered", boxed) == f"crossret: {needed}\n"
    (boxed / "dev_boxes.npy").unlink()
    assert crossret(*train, tmp_path / "half") == 2
    assert f"{boxed}/dev_boxes.npy: no such file, but " in crossret.err
    assert not (tmp_path / "half").exists()


def test_fine_tuning_goes_on_from_a_model(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    command = ["train", data, "--output", tmp_path / "run", "--fine-tune", trained, "--epochs", "1"]
    assert crossret(*command, "--learning-rate", "1e-30", "--set", "margin=0.3") == 0, crossret.err
    (base, words), (tuned, same_words) = load_model(trained / "best"), load_model(tmp_path / "run" / "best")
    assert words.idx2word == same_words.idx2word
    assert (base.config.margin, tuned.config.margin) == (0.2, 0.3)
    assert tuned.config.pooling == base.config.pooling == "lse"
    for name, tensor in base.state_dict().items():
        torch.testing.assert_close(tuned.state_dict()[name], tensor)
    assert crossret("train", "--config", tmp_path / "run" / "run.toml", "--output", tmp_path / "again") == 0
    for name in ("checkpoint.safetensors", "run.toml", "best/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert crossret(*command, "--learning-rate", "1e-30", "--set", "margin=0.3", "--epochs", "2", "--resume") == 0


@pytest.mark.parametrize(("model", "loss"), [*((model, "sigmoid") for model in TINY_MODELS), ("scan", "infonce")])
def test_the_loss_s_numbers_are_learnt_and_saved(
    crossret: Cli, data: Path, tmp_path: Path, model: str, loss: str
) -> None:
    run, options = tmp_path / "run", [*TINY, *TINY_MODELS[model], "--threads", "1", "--epochs", "1"]
    command = ["train", data, "--model", model, *options, "--output"]
    starts = {"infonce": {"log_scale": np.log(1 / 0.07)}, "sigmoid": {"log_scale": np.log(10), "bias": -10.0}}[loss]
    assert crossret(*command, run, "--loss", loss) == 0, crossret.err
    learnt, _ = load_model(run / "best")
    assert learnt.config.loss == loss
    found = {
        name.rpartition("matching_loss.")[2]: parameter.item()
        for name, parameter in learnt.named_parameters()
        if "matching_loss." in name
    }
    assert found.keys() == starts.keys()
    assert all(found[name] != pytest.approx(start, abs=1e-5) for name, start in starts.items())
    terms = json.loads((run / "log.jsonl").read_text().splitlines()[0])
    assert loss in terms or model in ("scan", "han", "vse", "oan", "laps")
    if loss == "infonce":  # a training of two epochs is one that was resumed
        assert crossret(*command, run, "--set", f"loss={loss}", "--epochs", "2", "--resume") == 0, crossret.err
        assert crossret(*command, tmp_path / "whole", "--loss", loss, "--epochs", "2") == 0, crossret.err
        straight, resumed = (path / "checkpoint.safetensors" for path in (tmp_path / "whole", run))
        assert straight.read_bytes() == resumed.read_bytes()


def test_a_fine_tuned_model_may_have_another_loss(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    """Which starts with numbers of its own; then they are the model's."""
    command = ["train", data, "--fine-tune", trained, "--epochs", "1", "--learning-rate", "1e-30", "--output"]
    assert crossret(*command, tmp_path / "run", "--loss", "infonce") == 0, crossret.err
    base, tuned = (load_model(run / "best")[0].state_dict() for run in (trained, tmp_path / "run"))
    assert tuned.pop("matching_loss.log_scale").item() == pytest.approx(np.log(1 / 0.07))
    assert tuned.keys() == base.keys()
    command[3] = tmp_path / "run"
    assert crossret(*command, tmp_path / "back", "--loss", "triplet") == 0, crossret.err
    back = load_model(tmp_path / "back" / "best")[0].state_dict()
    assert back.keys() == base.keys()
    for name, tensor in base.items():
        torch.testing.assert_close(back[name], tensor)


@pytest.fixture
def cut(data: Path, tmp_path: Path) -> Path:
    """The same data with the first four images of the dev split alone."""
    directory = tmp_path / "cut"
    shutil.copytree(data, directory)
    np.save(directory / "dev_ims.npy", np.load(directory / "dev_ims.npy")[:4])
    captions = (directory / "dev_caps.txt").read_text().splitlines(keepends=True)
    (directory / "dev_caps.txt").write_text("".join(captions[:20]))
    return directory


def test_the_first_images_of_dev_decide_where_that_is_asked_for(
    crossret: Cli, data: Path, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = [*TINY, "--epochs", "2", "--select-by", "r1"]
    command = ["train", data, "--output", tmp_path / "first", *options, "--dev-images", "4"]
    assert crossret(*command) == 0, crossret.err
    assert "the first 4 of 10 images with 20 captions, by the highest R@1 of both directions" in crossret.err
    figures = json.loads((tmp_path / "first" / "log.jsonl").read_text().splitlines()[-1])
    assert crossret.out.startswith("Best epoch ")
    assert re.search(r": R@1 [0-9.]+ / [0-9.]+, rsum [0-9.]+; ", crossret.out)
    assert crossret("train", cut, "--output", tmp_path / "again", *options) == 0, crossret.err
    assert json.loads((tmp_path / "again" / "log.jsonl").read_text().splitlines()[-1]) == figures
    run_again = ["train", "--config", tmp_path / "first" / "run.toml", "--output", tmp_path / "settings"]
    assert crossret(*run_again) == 0, crossret.err
    for name in ("checkpoint.safetensors", "run.toml", "log.jsonl"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "settings" / name).read_bytes()
    for other, images in (([*command[:-1], "5"], 5), (command[:-2], 10)):
        assert f"was trained with development images = 4, not {images}" in crossret.refused(*other, "--resume")
    assert crossret(*command, "--resume") == 0, crossret.err
    err = crossret.refused(*command[:-1], "11", "--resume")
    assert err == f"crossret: {data}/dev_ims.npy: has 10 images, of which the first 11 cannot be taken\n"


def test_the_words_of_a_file_are_taken(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, asked: list[Asked]
) -> None:
    Vocabulary(["picture", "zebra", "a"]).save(tmp_path / "vocabulary.json")
    command = ["train", data, "--output", tmp_path / "run", *TINY, "--vocabulary", tmp_path / "vocabulary.json"]
    assert crossret(*command) == 130, crossret.err
    words = asked[-1].words
    assert words[4:] == ["picture", "zebra", "a"]
    assert asked[-1].model.vocabulary_size == 7
    for option in (["--min-count", "2"], ["--count-dev"]):
        assert crossret.refused(*command, *option).endswith(f" {option[0]} makes no difference with --vocabulary\n")
    # Of a run's settings what is typed otherwise is no longer meant.
    command = ["train", "--config", trained / "run.toml", "--output", tmp_path / "run"]
    assert crossret(*command, "--vocabulary", tmp_path / "vocabulary.json") == 130, crossret.err
    assert asked[-1].words == words
    (tmp_path / "vocabulary.json").write_text('{"word2idx": {}}')
    err = crossret.refused(*command, "--vocabulary", tmp_path / "vocabulary.json")
    assert err.startswith(f"crossret: {tmp_path}/vocabulary.json: words 0 to 3 must be <pad>, ")


def test_the_words_of_dev_are_counted_where_that_is_asked_for(
    crossret: Cli, cut: Path, tmp_path: Path, asked: list[Asked]
) -> None:
    captions = (cut / "dev_caps.txt").read_text()
    (cut / "dev_caps.txt").write_text(captions.replace("picture 0", "zebra 0 quagga"))
    command = ["train", cut, "--output", tmp_path / "run", *TINY, "--min-count", "5"]
    assert crossret(*command) == crossret(*command, "--count-dev") == 130, crossret.err
    assert crossret(*command, "--count-dev", "--set", "max_words=2", "--dev-images", "1") == 130, crossret.err
    without, counted, cut_short = (set(training.words) for training in asked)
    assert counted - without == {"zebra", "quagga"}
    assert {"zebra", "99"} <= cut_short  # of all dev
    assert not cut_short & {"quagga", "v"}  # which the model never reads
    assert asked[-1].model.max_words == 2
