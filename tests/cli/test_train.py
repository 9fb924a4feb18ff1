"""crossret train: presets and options, progress, and what resuming refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from crossret.hyperparameters import MODEL_CONFIGS
from crossret.training import load_model
from crossret.training.callbacks import Start
from tests.cli.command import TINY, TINY_MODELS, Cli


def test_train_follows_preset_and_options(trained: Path) -> None:
    config = json.loads((trained / "best" / "config.json").read_text())["config"]
    assert (config["cross_attention"], config["pooling"], config["lambda_lse"]) == ("i2t", "lse", 5.0)
    assert (config["embed_dim"], config["word_dim"]) == (8, 4)


@pytest.mark.parametrize(
    ("options", "schedule", "lambda_softmax"),
    [
        ([], (30, (15,), 2e-4), 9),
        (["--preset", "coco_t2i_lse"], (20, (10,), 5e-4), 9),
        (["--preset", "coco_i2t_avg", "--epochs", "3", "--decay-epoch", "2"], (3, (2,), 5e-4), 4),
        (["--decay-epoch", "2", "--decay-epoch", "5"], (30, (2, 5), 2e-4), 9),
        (["--preset", "coco_i2t_avg", "--learning-rate", "0.1"], (20, (10,), 0.1), 4),
        (["--cross-attention", "i2t"], (30, (15,), 2e-4), 4),
        (["--cross-attention", "i2t", "--lambda-softmax", "7"], (30, (15,), 2e-4), 7),
        (["--cross-attention", "i2t", "--preset", "f30k_t2i_avg"], (30, (15,), 2e-4), 9),
        (["--model", "han"], (20, (10,), 1e-4), 9),
        (["--model", "han", "--preset", "coco", "--lambda-softmax", "4"], (20, (10,), 1e-4), 4),
    ],
)
def test_options_left_out_are_the_preset_s(
    crossret: Cli,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    schedule: tuple[int, tuple[int, ...], float],
    lambda_softmax: float,
) -> None:
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **_: object) -> None:
        seen.append((config.epochs, config.decay_epochs, config.learning_rate))
        seen.append(model.config.lambda_softmax)
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 130
    assert seen == [schedule, lambda_softmax]


def test_every_option_of_the_schedule_is_followed(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **_: object) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    options = ["--optimizer", "adadelta", "--weight-decay", "0.25", "--gradient-norm", "7", "--batch-size", "9"]
    assert crossret("train", data, "--output", tmp_path / "run", "--seed", "4", *options) == 130
    (config,) = seen
    assert (config.optimizer, config.weight_decay, config.gradient_norm) == ("adadelta", 0.25, 7)
    assert (config.batch_size, config.seed) == (9, 4)


@pytest.mark.parametrize("typed", [True, False])
def test_none_is_typed_and_read_from_a_file(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **others: Any) -> None:
        seen.append((model.config, config))
        out_dir.mkdir()
        others["callbacks"][-1].on_start(Start(out_dir, model, config, False, 0, 0, 1, []))
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    options = {"clusters": "none", "gradient_norm": "none", "patience": "none", "encode_chunk": "2"}
    settings = tmp_path / "mine.toml"
    settings.write_text("".join(f'{name} = "{value}"\n' for name, value in options.items()))
    spelt = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    given = spelt if typed else ["--config", settings]
    command = ["train", data, "--model", "han", "--preset", "f30k", *TINY]  # whose clusters are 32
    assert crossret(*command, "--output", tmp_path / "run", *given) == 130, crossret.err
    # What a run writes says none, too: its preset's values are not meant.
    again = ["train", "--config", tmp_path / "run" / "run.toml", "--output", tmp_path / "again"]
    assert crossret(*again) == 130, crossret.err
    for config, schedule in seen:
        assert config.clusters is None
        assert (schedule.gradient_norm, schedule.patience, schedule.encode_chunk) == (None, None, 2)
    assert len(seen) == 2


@pytest.mark.parametrize("model", MODEL_CONFIGS)
def test_every_model_is_trained_and_evaluated(crossret: Cli, data: Path, tmp_path: Path, model: str) -> None:
    options = ["--model", model, "--epochs", "1", *TINY, *TINY_MODELS[model]]
    assert crossret("train", data, "--output", tmp_path, *options) == 0, crossret.err
    trained = load_model(tmp_path / "best")[0].config
    assert (trained.kind, trained.embed_dim) == (model, 8)
    given = {
        "scan": ("cross_attention", "ensemble"),
        "sman": ("location", False),
        "oan": ("text_encoder", "lstm"),
        "vse": ("measure", "order"),
    }
    name, value = given.get(model, ("heads", 2))
    assert getattr(trained, name) == value
    assert crossret("evaluate", tmp_path, data) == 0, crossret.err
    assert "test: 10 images" in crossret.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log", "csv", "--log", "excel"], "--log must be one of csv, tensorboard, wandb, not 'excel'"),
        (["--clusters", "3"], "--clusters: scan has no such hyper-parameter; han has"),
        (["--patience", "never"], "Invalid value for '--patience': must be a whole number or none, not 'never'"),
        (["--margin", "none"], "'--margin'"),
        (["--clusters", "none"], "--clusters: scan has no such hyper-parameter; han has"),
        (["--model", "han", "--gamma", "0.1"], "--gamma: han has no such hyper-parameter; oan has"),
        (["--model", "sman", "--heads", "2"], "--heads: sman has no such hyper-parameter; han and mhsan and oan have"),
        (["--model", "oan", "--no-bidirectional"], "--no-bidirectional: oan has no such hyper-parameter; scan"),
        (["--model", "oan", "--text-encoder", "gru"], "text_encoder must be one of ngram, lstm, not 'gru'"),
        (["--model", "mhsan", "--dropout", "1"], "dropout must be less than 1"),
        (["--lambda-lse", "5"], "--lambda-lse makes no difference to this scan: leave it out, or choose --pooling lse"),
        (
            ["--model", "oan", "--gamma", "0.1", "--no-intra-attention"],
            "--gamma makes no difference to this oan: leave it out, or choose --intra-attention",
        ),
        (
            ["--model", "han", "--heads", "2", "--layers", "0"],
            "--heads makes no difference to this han: leave it out\n",
        ),
        (
            ["--model", "han", "--transformer-layers", "2", "--embed-dim", "12"],
            "--transformer-layers makes no difference to this han: leave it out\n",
        ),
        (["--model", "mhsan", "--feature-dim", "16777216"], "make a model that takes"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(
    crossret: Cli, data: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 2
    assert message in crossret.err
    assert crossret.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_word_vectors_are_a_start(crossret: Cli, data: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("picture 1 2 3 4\nzebra 5 6 7 8\n")
    options = [*TINY[:6], "--epochs", "1", "--learning-rate", "1e-30", "--word-vectors", vectors]
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 0, crossret.err
    model, vocabulary = load_model(tmp_path / "run" / "best")
    assert model.text.embed.weight[vocabulary.word2idx["picture"]].tolist() == [1, 2, 3, 4]
    assert f"{vectors}: vectors of 1 of the {len(vocabulary)} words\n" in crossret.out
    # A resumed training has its checkpoint's.
    vectors.write_text("picture 9 9 9 9\n")
    assert crossret("train", data, "--output", tmp_path / "run", *options, "--epochs", "2", "--resume") == 0, (
        crossret.err
    )
    model, _ = load_model(tmp_path / "run" / "best")
    assert model.text.embed.weight[vocabulary.word2idx["picture"]].tolist() == [1, 2, 3, 4]
    assert "vectors of" not in crossret.out


def test_frozen_words_stay_when_trained_and_when_tuned(crossret: Cli, data: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("picture 1 2 3 4\n")
    options = [*TINY, "--epochs", "1", "--word-vectors", vectors, "--freeze-words"]
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 0, crossret.err
    model, vocabulary = load_model(tmp_path / "run" / "best")
    words = model.text.embed.weight
    assert words[vocabulary.word2idx["picture"]].tolist() == [1, 2, 3, 4]
    learnt = sum(parameter.numel() for parameter in model.parameters()) - words.numel()
    assert f"scan, {learnt:,} parameters to learn" in " ".join(crossret.err.split())
    for flag, same in ((), True), (("--no-freeze-words",), False):
        output = tmp_path / f"tuned{len(flag)}"
        tuned = ["train", data, "--output", output, "--fine-tune", tmp_path / "run", "--epochs", "1", *flag]
        assert crossret(*tuned, "--learning-rate", "0.01") == 0, crossret.err
        again, _ = load_model(output / "best")
        assert torch.equal(again.text.embed.weight, words) == same


def test_help_of_train_says_which_models_have_an_option(crossret: Cli) -> None:
    assert crossret("train", "--help") == 0
    text = " ".join(crossret.out.split())
    for config in MODEL_CONFIGS.values():
        for field in dataclasses.fields(config):
            if field.name not in ("image_dim", "vocabulary_size", "spatial_order"):  # which the data tell
                assert f"--{field.name.replace('_', '-')} " in text
                assert field.metadata["help"] in text.replace("- ", "-")
    assert "Share of the own modality in the fusion gate; 1 is all. [sman]" in text
    assert "What reads the captions. [han, oan]" in text
    assert "--text-encoder <gru|transformer|ngram|lstm>" in text
    assert "Heads of a heterogeneous attention layer. [han] Attention heads of either side. [mhsan, oan]" in text
    assert "Margin of the triplet loss. --" in text
    assert "--decay-epoch <int> " in text
    assert "two models trained apart" in text


@pytest.mark.parametrize("arguments", [["--model", "han", "--help"], ["-h", "--model=han"]])
def test_help_beside_a_model_is_of_that_model(crossret: Cli, arguments: list[str]) -> None:
    assert crossret("train", *arguments) == 0
    text = " ".join(crossret.out.split())
    for kind, config in MODEL_CONFIGS.items():
        for field in dataclasses.fields(config):
            if field.name not in ("image_dim", "vocabulary_size"):
                own = field.name in {each.name for each in dataclasses.fields(MODEL_CONFIGS["han"])}
                assert (f" --{field.name.replace('_', '-')} " in text) == own, (kind, field.name)
    assert "--text-encoder <gru|transformer> What reads the captions. --" in text
    assert "Heads of a heterogeneous attention layer. --" in text
    assert all(f" --{name} " in text for name in ("output", "config", "vocabulary", "learning-rate", "seed", "threads"))
    assert text.startswith("Usage: crossret train [OPTIONS] {data}")
    assert "completion" not in text


def test_help_beside_no_model_of_ours_says_so(crossret: Cli) -> None:
    assert crossret("train", "--model", "clip", "--help") == 2
    assert crossret.err == "crossret: --model must be one of scan, sman, han, mhsan, oan, vse, not 'clip'\n"


def test_presets_of_one_model(crossret: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert crossret("presets", "oan") == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in crossret.out.splitlines() if "│" in line]
    assert [row[1] for row in rows] == list(MODEL_CONFIGS["oan"].presets)
    assert (rows[0][0], rows[0][2]) == ("oan", "--max-words 80")
    assert rows[0][3].endswith(" --gradient-norm 2 --select-by r1 --decay-epoch 15")
    assert crossret("presets", "clip") == 2
    assert crossret.err.startswith("crossret: model must be one of scan, ")


def test_presets_lists_every_preset_with_its_schedule(crossret: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert crossret("presets") == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in crossret.out.splitlines() if "│" in line]
    models = [row[0] for row in rows if row[0]]
    assert models == list(MODEL_CONFIGS)
    assert [row[1] for row in rows] == [name for config in MODEL_CONFIGS.values() for name in config.presets]
    listed = {row[1]: row[2] for row in rows[: len(MODEL_CONFIGS["scan"].presets)]}
    assert listed["f30k_t2i_avg"] == "the defaults"
    assert listed["coco_i2t_avg"] == "--cross-attention i2t --lambda-softmax 4"
    assert next(row for row in rows if row[1] == "f30k_no_inter")[2] == "--no-inter-attention --max-words 80"
    adadelta = "--optimizer adadelta --learning-rate 0.05 --weight-decay 0.0005 --gradient-norm 0.1 --decay-epoch 50"
    assert rows[len(MODEL_CONFIGS["scan"].presets)][3] == f"--epochs 60 --batch-size 128 {adadelta}"


def test_what_presets_lists_can_be_typed(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **_: object) -> None:
        seen.append((model.config, config))
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    monkeypatch.setenv("COLUMNS", "400")
    crossret("presets")
    *_, last = [line for line in crossret.out.splitlines() if "│ scenes" in line]
    _, preset, options, schedule = (cell.strip() for cell in last.split("│")[1:-1])
    command = ["train", data, "--output", tmp_path / "run", "--model", "vse"]
    assert crossret(*command, "--preset", preset) == crossret(*command, *options.split(), *schedule.split()) == 130
    assert seen[0] == seen[1]


def test_no_bar_is_drawn_into_a_file(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert crossret("train", data, "--output", tmp_path / "run", "--epochs", "2", *TINY) == 0
    lines = [line for line in crossret.err.splitlines() if line[0] not in "┌│└"]  # the summary
    assert [line.split("  ")[0] for line in lines] == ["epoch 1", "epoch 2"]


def test_resuming_with_other_threads_is_one_line(crossret: Cli, data: Path, tmp_path: Path) -> None:
    command = ["train", data, *TINY, "--output", tmp_path]
    assert crossret(*command, "--epochs", "1", "--threads", "1") == 0
    try:
        assert crossret(*command, "--epochs", "1", "--threads", "2", "--resume") == 0
    finally:
        torch.set_num_threads(1)
    assert crossret.err.startswith("crossret: warning: ")
    assert "written with 1 thread" in crossret.err
    assert crossret.err.count("\n") == 1 + crossret.err.count("│\n") + 2  # the summary


def test_resuming_with_other_data_is_refused(crossret: Cli, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    command = ["train", copy, *TINY, "--output", tmp_path / "run", "--epochs", "1"]
    assert crossret(*command) == 0
    captions = (copy / "dev_caps.txt").read_text()
    (copy / "dev_caps.txt").write_text(captions.replace("picture 3", "picture 4", 1))
    assert crossret(*command, "--resume") == 2
    assert "was trained with development data = " in crossret.err
