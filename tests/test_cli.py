"""The command line: every command does its work, every mistake is one line and exit code 2, Ctrl-C can be resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from crossret import cli
from crossret.checkpoints import load_model
from crossret.corpus import PrecomputedCorpus
from crossret.data import PrecomputedDataset
from crossret.data.batches import pad_tokens
from crossret.evaluation import encode_dataset, score_matrix
from crossret.presets import SCAN_PRESETS
from crossret_kernels import maxsim_scores, scan_scores

TINY = ["--embed-dim", "8", "--word-dim", "4", "--batch-size", "16", "--learning-rate", "0.01"]
COMMANDS = ["demo", "render-scenes", "train", "evaluate", "score", "search"]
ROOT = Path(__file__).parents[1]


SCORE = ["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/y.npy"]
SEARCH = ["search", "{data}", "--model", "{trained}"]


class Cli:
    """Runs commands inside this process; keeps what the last one printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path) -> int:
        with pytest.raises(SystemExit) as exit_:
            cli.main([str(argument) for argument in arguments])
        self.out, self.err = self.capsys.readouterr()
        return int(exit_.value.code or 0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and commands with --threads change the number for the whole process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def crossret(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in which the words of a caption tell the numbers of its image."""
    directory = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for split, n in (("train", 100), ("dev", 10), ("test", 10)):
        np.save(directory / f"{split}_ims.npy", rng.standard_normal((n, 3, 6), np.float32))
        lines = [f"picture {i} {'abcde'[i % 5]} {'vwxyz'[j]}\n" for i in range(n) for j in range(5)]
        (directory / f"{split}_caps.txt").write_text("".join(lines))
    return directory


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained")
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", str(data), "--output", str(run), "--epochs", "2", "--preset", "f30k_i2t_lse", *TINY])
    assert not exit_.value.code
    return run


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "crossret.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(crossret: Cli, command: str) -> None:
    assert crossret(command, "--help") == 0
    assert f"Examples:\n    crossret {command}" in crossret.out


def test_without_a_command_there_is_help(crossret: Cli) -> None:
    assert crossret() == 0
    assert all(command in crossret.out for command in COMMANDS)


def test_version(crossret: Cli) -> None:
    assert crossret("--version") == 0
    assert crossret.out == f"crossret {metadata.version('crossret')}\n"


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, crossret.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "{data}"], "Missing option '--output'"),
        (["train", "{tmp}/absent", "--output", "{tmp}/run"], "absent"),
        (["train", "{tmp}", "--output", "{tmp}/run"], "train_ims.npy: no such file"),
        (["train", "{data}", "--output", "{tmp}/run", "--preset", "f30k"], "preset must be one of f30k_t2i_lse"),
        (["train", "{data}", "--output", "{tmp}/run", "--pooling", "mean"], "--pooling"),
        (["train", "{data}", "--output", "{tmp}/run", "--epochs", "many"], "--epochs"),
        (["train", "{data}", "--output", "{tmp}/run", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "{data}", "--output", "{tmp}/run", "--lambda-softmax", "-1"], "lambda_softmax"),
        (["train", "{data}", "--output", "{tmp}/run", "--learning-rate", "nan"], "learning_rate"),
        (["train", "{data}", "--output", "{tmp}/run", "--resume"], "checkpoint.safetensors"),
        (["train", "{data}", "--output", "{trained}", "--embed-dim", "8"], "there is a training already"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", "-1"], "--seed"),
        (["train", "{data}", "--output", "{tmp}/run", "--seed", str(2**63)], "--seed"),
        (["train", "{data}", "--output", "{tmp}/run", "--threads", str(10**30)], "--threads"),
        (
            ["train", "{data}", "--output", "{tmp}/run", "--embed-dim", "16777216", "--word-dim", "8"],
            "embed_dim 167772",
        ),
        (["train", "{data}", "--output", "{tmp}/run", "--preset", "f30k_sum_max_i2t", "--pooling", "lse"], "--pooling"),
        (["train", "{data}", "--output", "{tmp}/run", "--i2t-pooling", "lse"], "--i2t-pooling makes no difference"),
        (["evaluate", "{trained}", "{fold}", "--five-fold"], "--five-fold: the 7 images"),
        ([*SCORE, "--sum-max", "--lambda-softmax", "9"], "--lambda-softmax makes no difference"),
        ([*SCORE, "--lambda-softmax", "-5"], "lambda_softmax must be greater than 0, not -5.0"),
        ([*SCORE, "--lambda-lse", "5"], "--lambda-lse makes no difference"),
        (["evaluate", "{tmp}", "{data}"], "model.safetensors: no such file"),
        (["evaluate", "{trained}", "{data}", "--split", "testall"], "testall_ims.npy: no such file"),
        (["evaluate", "{trained}", "{data}", "--json", "{tmp}/absent/figures.json"], "no directory {tmp}/absent"),
        (["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/absent/y.npy"], "{tmp}/absent"),
        (["score", "--regions", "{tmp}/x.npy", "--words", "{tmp}/x.npy", "--output", "{tmp}/y.npy"], "x.npy"),
        (["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/y.npy"], "not a readable .npy file"),
        (["search", "{data}"], "of --words and --regions exactly one is needed"),
        (["search", "{data}", "--words", "{text}"], "{data}: no features.npy, and no values.npy with offsets.npy"),
        (["search", "{data}", "--caption", "a"], "--caption needs --model"),
        ([*SEARCH], "of --caption and --captions and --image exactly one is needed"),
        ([*SEARCH, "--caption", "a", "--image", "1"], "exactly one is needed"),
        ([*SEARCH, "--caption", "a", "--sum-max"], "--sum-max is for a corpus of features, without --model"),
        ([*SEARCH, "--caption", "a", "--caption", " "], "--caption 2: the caption is empty"),
        ([*SEARCH, "--caption", "a", "-k", "0"], "-k"),
        ([*SEARCH, "--captions", "{data}/test_ims.npy"], "test_ims.npy, line 1: not UTF-8"),
        ([*SEARCH, "--image", "10"], "image 10: the corpus has images 0 to 9"),
        ([*SEARCH, "--image", "-1"], "image -1: the corpus has images 0 to 9"),
        ([*SEARCH, "--caption", "a", "--split", "val"], "val_ims.npy: no such file"),
        ([*SEARCH, "--captions", "{text}", "--output", "{text}"], "would take the place of this input"),
        ([*SEARCH, "--caption", "a", "--output", "{data}/test_ims.npy"], "would take the place of this input"),
        (
            [*SEARCH, "--caption", "a", "--output", "{trained}/best/model.safetensors"],
            "model.safetensors: what is written would take the place of this input",
        ),
        ([*SEARCH, "--caption", "a", "--output", "{tmp}/absent/found.jsonl"], "no directory {tmp}/absent"),
        (["render-scenes", "{text}"], "train_caps.txt"),
        (["render-scenes", "{tmp}/scenes", "--train", "0"], "--train"),
        (["demo", "--output", "{tmp}/demo", "--images", "1"], "--images"),
        (["demo", "--output", "{data}"], "{data}: not empty, and not an earlier demo's"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "fold").mkdir()
    np.save(tmp_path / "fold" / "test_ims.npy", np.zeros((7, 3, 6), np.float32))
    (tmp_path / "fold" / "test_caps.txt").write_text("a picture\n" * 35)
    places = {
        "data": data,
        "fold": tmp_path / "fold",
        "trained": trained,
        "tmp": tmp_path,
        "text": data / "train_caps.txt",
    }
    assert crossret(*(argument.format_map(places) for argument in arguments)) == 2
    assert crossret.err.startswith("crossret: ")
    assert message.format_map(places) in crossret.err
    assert crossret.err.count("\n") == 1
    assert crossret.out == ""


def test_an_unavailable_backend_is_a_mistake(
    crossret: Cli, data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSRET_BACKEND", "no-such-backend")
    assert crossret("evaluate", trained, data) == 2
    assert "no-such-backend" in crossret.err


def test_a_bug_is_not_dressed_up_as_a_mistake(monkeypatch: pytest.MonkeyPatch, data: Path, trained: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("crossret.evaluation.encode_dataset", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["evaluate", str(trained), str(data)])


def test_render_scenes(crossret: Cli, tmp_path: Path) -> None:
    assert crossret("render-scenes", tmp_path, "--train", "2", "--dev", "1", "--test", "1", "--workers", "1") == 0
    assert json.loads((tmp_path / "scenes.json").read_text())["counts"] == {"train": 2, "dev": 1, "test": 1}


def test_train_follows_preset_and_options(trained: Path) -> None:
    config = json.loads((trained / "best" / "config.json").read_text())["config"]
    assert (config["cross_attention"], config["pooling"], config["lambda_lse"]) == ("i2t", "lse", 5.0)
    assert (config["embed_dim"], config["word_dim"]) == (8, 4)


@pytest.mark.parametrize(
    ("options", "schedule", "lambda_softmax"),
    [
        ([], (30, 15, 2e-4), 9),
        (["--preset", "coco_t2i_lse"], (20, 10, 5e-4), 9),
        (["--preset", "coco_i2t_avg", "--epochs", "3", "--decay-epoch", "2"], (3, 2, 5e-4), 4),
        (["--preset", "coco_i2t_avg", "--learning-rate", "0.1"], (20, 10, 0.1), 4),
        (["--cross-attention", "i2t"], (30, 15, 2e-4), 4),
        (["--cross-attention", "i2t", "--lambda-softmax", "7"], (30, 15, 2e-4), 7),
        (["--cross-attention", "i2t", "--preset", "f30k_t2i_avg"], (30, 15, 2e-4), 9),
    ],
)
def test_options_left_out_are_the_preset_s(
    crossret: Cli,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    schedule: tuple[int, int, float],
    lambda_softmax: float,
) -> None:
    seen: list[Any] = []

    def remember(model: Any, train_data: object, dev_data: object, config: Any, out_dir: Path, **_: object) -> None:
        seen.append((config.epochs, config.decay_epoch, config.learning_rate))
        seen.append(model.config.lambda_softmax)
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", remember)
    assert crossret("train", data, "--output", tmp_path / "run", *options) == 130
    assert seen == [schedule, lambda_softmax]


def test_help_of_train_lists_presets_and_schedules(crossret: Cli) -> None:
    assert crossret("train", "--help") == 0
    text = " ".join(crossret.out.split())
    for preset in SCAN_PRESETS:
        assert preset in text
    for default in ("by default 30 (f30k), 20 (coco)", "by default 0.0002 (f30k), 0.0005 (coco)"):
        assert default in text
    assert "two models trained apart" in text


def test_no_bar_is_drawn_into_a_file(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert crossret("train", data, "--output", tmp_path / "run", "--epochs", "2", *TINY) == 0
    assert [line.split("  ")[0] for line in crossret.err.splitlines()] == ["epoch 1", "epoch 2"]


@pytest.mark.parametrize("split", ["dm[/b]", "[red]x", ":cat:", "a\\"])
def test_names_are_shown_as_they_are(crossret: Cli, data: Path, trained: Path, tmp_path: Path, split: str) -> None:
    for name in ("ims.npy", "caps.txt"):
        (tmp_path / f"{split}_{name}").parent.mkdir(exist_ok=True)
        (tmp_path / f"{split}_{name}").write_bytes((data / f"test_{name}").read_bytes())
    assert crossret("evaluate", trained, tmp_path, "--split", split) == 0
    assert f"{split}: 10 images" in crossret.out


def test_figures_are_kept_where_the_terminal_has_no_arrows(data: Path, trained: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "crossret.cli", "evaluate", str(trained), str(data), "--json", str(figures)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert f"rsum {json.loads(figures.read_text())['rsum']:.1f}" in done.stdout
    assert "image ? sentence" in done.stdout


@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_ctrl_c_is_one_line(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.evaluation.encode_dataset", interrupted)
    monkeypatch.setattr("crossret.demo.run_demo", interrupted)
    arguments = {"evaluate": [trained, data], "demo": ["--output", tmp_path / "d"]}[command]
    assert crossret(command, *arguments) == 130
    left = f"; {tmp_path / 'd'} holds what was done, the same command starts anew" if command == "demo" else ""
    assert crossret.err.strip() == f"crossret: interrupted{left}"
    assert crossret.out == ""


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    code = (
        "import builtins, signal; from crossret.command import main\n"
        "load = builtins.__import__\n"
        "def pressed(name, *others):\n"
        "    if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "    return load(name, *others)\n"
        "builtins.__import__ = pressed\n"
        "main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "crossret: interrupted\n")


def test_memory_that_cannot_be_had_is_a_mistake(
    crossret: Cli, data: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crossret.evaluation.encode_dataset", lambda *_, **__: torch.empty(2**60))
    assert crossret("evaluate", trained, data) == 2
    assert "not enough memory" in crossret.err
    assert crossret.err.count("\n") == 1


@pytest.mark.parametrize("five_fold", [False, True])
def test_evaluate_prints_and_writes_the_figures(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, five_fold: bool
) -> None:
    figures = tmp_path / "figures.json"
    assert crossret("evaluate", trained, data, "--json", figures, *(["--five-fold"] if five_fold else [])) == 0
    contents = json.loads(figures.read_text())
    assert contents["five_fold"] is five_fold
    assert f"{contents['rsum']:.1f}" in crossret.out
    # Two images a fold: each caption's image is among the first five.
    assert (contents["t2i_r5"] == 100) is five_fold


def test_evaluate_takes_a_models_own_directory(crossret: Cli, data: Path, trained: Path) -> None:
    assert crossret("evaluate", trained, data) == 0
    expected = crossret.out
    assert crossret("evaluate", trained / "best", data) == 0
    assert crossret.out == expected


def test_evaluate_names_data_of_another_size(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "test_ims.npy", np.zeros((10, 3, 7), np.float32))
    (tmp_path / "test_caps.txt").write_bytes((data / "test_caps.txt").read_bytes())
    assert crossret("evaluate", trained, tmp_path) == 2
    assert "regions have 7 features" in crossret.err


@pytest.mark.parametrize(
    "options", [["--direction", "i2t", "--pooling", "lse", "--lambda-lse", "5", "--clip-slope", "0"], ["--sum-max"]]
)
def test_score(crossret: Cli, tmp_path: Path, options: list[str]) -> None:
    rng = np.random.default_rng(0)
    regions, words = rng.standard_normal((3, 4, 8), np.float32), rng.standard_normal((5, 6, 8), np.float32)
    lengths = np.array([6, 1, 2, 3, 4])
    for name, array in (("regions", regions), ("words", words), ("lengths", lengths)):
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: tmp_path / f"{name}.npy" for name in ("regions", "words", "lengths", "scores")}
    code = crossret(
        *("score", "--regions", files["regions"], "--words", files["words"], "--word-lengths", files["lengths"]),
        *("--output", files["scores"], "--normalize", *options),
    )
    assert code == 0
    arguments = (torch.from_numpy(regions), torch.from_numpy(words), None, lengths.tolist())
    if "--sum-max" in options:
        expected = maxsim_scores(*arguments, normalize=True)
    else:
        expected = scan_scores(*arguments, direction="i2t", pooling="lse", lambda_lse=5, clip_slope=0, normalize=True)
    np.testing.assert_allclose(np.load(files["scores"], allow_pickle=False), expected.numpy(), rtol=1e-6, atol=1e-6)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("from_file", [False, True])
def test_search_finds_images_for_captions(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, from_file: bool
) -> None:
    texts = ["picture 3 d [b]v", "picture 9 e z"]
    (tmp_path / "queries.txt").write_text("".join(f"{text}\n" for text in texts))
    queries = ["--captions", tmp_path / "queries.txt"] if from_file else [x for t in texts for x in ("--caption", t)]
    found = tmp_path / "found.jsonl"
    assert crossret("search", data, "--model", trained, *queries, "-k", "3", "--output", found) == 0
    model, vocabulary = load_model(trained / "best")
    images, _ = encode_dataset(model, PrecomputedCorpus(PrecomputedDataset(data, "test"), vocabulary))
    tokens, lengths = pad_tokens([vocabulary.encode(text) for text in texts])
    with torch.inference_mode():
        scores = model.score(images, model.encode_captions(tokens, lengths)).T
    values, indices = scores.sort(dim=1, descending=True, stable=True)
    entries = json_lines(found)
    assert [(entry["query"], entry["caption"]) for entry in entries] == list(enumerate(texts))
    lines = (data / "test_caps.txt").read_text().splitlines()
    for row, entry in enumerate(entries):
        assert [result["rank"] for result in entry["results"]] == [1, 2, 3]
        assert [result["index"] for result in entry["results"]] == indices[row, :3].tolist()
        np.testing.assert_allclose([result["score"] for result in entry["results"]], values[row, :3].tolist(), 1e-5)
        for result in entry["results"]:
            assert result["captions"] == lines[5 * result["index"] :][:5]
            assert result["captions"][0] in crossret.out
    assert texts[0] in crossret.out


def test_search_finds_captions_for_images(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    arguments = ["--image", "4", "--image", "0", "-k", "60", "--output", found]
    assert crossret("search", data, "--model", trained / "best", *arguments) == 0
    model, vocabulary = load_model(trained / "best")
    images, captions = encode_dataset(model, PrecomputedCorpus(PrecomputedDataset(data, "test"), vocabulary))
    scores = score_matrix(model, images, captions)[[4, 0]]
    lines = (data / "test_caps.txt").read_text().splitlines()
    for row, (image, entry) in enumerate(zip([4, 0], json_lines(found), strict=True)):
        assert entry["image"] == image
        assert sorted(result["index"] for result in entry["results"]) == list(range(50))
        for result in entry["results"]:
            np.testing.assert_allclose(result["score"], scores[row, result["index"]], 1e-5)
            assert (result["caption"], result["image"]) == (lines[result["index"]], result["index"] // 5)
        ranked = [result["score"] for result in entry["results"]]
        assert ranked == sorted(ranked, reverse=True)


def test_search_shows_the_first_queries(crossret: Cli, data: Path, trained: Path) -> None:
    assert crossret("search", data, "--model", trained, "--captions", data / "test_caps.txt", "-k", "1") == 0
    assert "40 more queries" in crossret.out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("queries", ["words", "regions"])
def test_search_in_features(crossret: Cli, tmp_path: Path, packed: bool, queries: str) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([3, 1, 4, 2, 4, 1])
    corpus = rng.standard_normal((6, 4, 8), np.float32).astype(np.float16)
    wanted = rng.standard_normal((2, 5, 8), np.float32)
    if packed:
        rows = np.concatenate([item[:length] for item, length in zip(corpus, lengths, strict=True)])
        np.save(tmp_path / "values.npy", rows)
        np.save(tmp_path / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))
    else:
        np.save(tmp_path / "features.npy", corpus)
        np.save(tmp_path / "lengths.npy", lengths)
    np.save(tmp_path / "wanted.npy", wanted)
    np.save(tmp_path / "n_wanted.npy", np.array([5, 2]))
    found = tmp_path / "found.jsonl"
    code = crossret(
        *("search", tmp_path, f"--{queries}", tmp_path / "wanted.npy"),
        *(f"--{queries[:-1]}-lengths", tmp_path / "n_wanted.npy", "-k", "4", "--output", found),
        *("--direction", "i2t", "--pooling", "max"),
    )
    assert code == 0, crossret.err
    sides = [(torch.from_numpy(corpus).float(), lengths.tolist()), (torch.from_numpy(wanted), [5, 2])]
    (regions, n_regions), (words, n_words) = sides if queries == "words" else sides[::-1]
    scores = scan_scores(regions, words, n_regions, n_words, direction="i2t", pooling="max")
    values, indices = (scores.T if queries == "words" else scores).sort(dim=1, descending=True, stable=True)
    for row, entry in enumerate(json_lines(found)):
        assert entry["query"] == row
        assert [result["index"] for result in entry["results"]] == indices[row, :4].tolist()
        assert [result["score"] for result in entry["results"]] == values[row, :4].tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"features": np.full((3, 2, 4), np.nan, np.float32)},
            "query 0 has the score nan with item 0: {tmp}/features.npy: item 0 has features that are not finite",
        ),
        (
            {"values": np.array([[1, 1, 1, 1], [1, 1e300, 1, 1]]), "offsets": np.array([0, 1, 2])},
            "with item 1: {tmp}/values.npy: item 1 has features that are not finite in float32",
        ),
        (
            {"features": np.ones((3, 2, 4)), "wanted": np.array([[[1.0] * 4], [[-1e300] * 4]])},
            "{tmp}/wanted.npy: item 1 has features that are not finite in float32",
        ),
        (
            {"features": np.full((3, 2, 4), 1e38), "wanted": np.full((1, 1, 4), 1e38)},
            "item 0 of {tmp}/wanted.npy with item 0 of {tmp}/features.npy: the score is beyond float32",
        ),
        ({"features": np.ones((3, 2, 5), np.float32)}, "have 5"),
        ({"features": np.ones((3, 2, 4), np.float32), "lengths": np.array([1, 2, 3])}, "lengths.npy: item 2 has"),
        ({"features": np.ones((3, 2, 4), np.float32), "values": np.ones((3, 4), np.float32)}, "both features.npy"),
        ({"values": np.ones((3, 4), np.float32)}, "offsets.npy: No such file"),
        ({"values": np.ones((3, 4), np.float32), "offsets": np.array([0, 2])}, "offsets.npy: must go from 0 to the 3"),
        ({"values": np.ones((3, 4), np.float32), "offsets": np.array([1, 3])}, "offsets.npy: must go from 0 to the 3"),
        ({"values": np.ones((3, 4), np.float32), "offsets": np.array([0, 4, 3])}, "offset 1 is 4, expected 0 to the 3"),
        (
            {"values": np.ones((200, 4), np.float32), "offsets": np.array([0, 2**63 - 1, -2, 200])},
            "offsets.npy: offset 1 is 9223372036854775807, expected 0 to the 200 rows",
        ),
        (
            {"values": np.ones((3, 4), np.float32), "offsets": np.array([0, 2**64 - 1, 3], np.uint64)},
            "offsets.npy: offset 1 is 18446744073709551615, expected 0 to the 3 rows",
        ),
        ({"values": np.ones((3, 4), np.float32), "offsets": np.array([0, 2, 1, 3])}, "item 1 has rows 2 to 1"),
        ({"values": np.ones((3, 4), np.float32), "offsets": np.array([0, 0, 3])}, "item 0 has rows 0 to 0"),
    ],
)
def test_a_bad_corpus_of_features_is_named(
    crossret: Cli, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    for name, array in {"wanted": np.ones((1, 1, 4), np.float32), **arrays}.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = tmp_path / "found.jsonl"
    arguments = ["--words", tmp_path / "wanted.npy", "--raw-feature-norm", "no_norm", "--output", found]
    assert crossret("search", tmp_path, *arguments) == 2
    assert message.format(tmp=tmp_path) in crossret.err
    assert crossret.err.count("\n") == 1
    assert not found.exists()


def test_an_image_whose_features_are_not_finite_is_named(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path
) -> None:
    regions = np.load(data / "test_ims.npy")
    regions[4] = np.inf
    np.save(tmp_path / "test_ims.npy", regions)
    shutil.copy(data / "test_caps.txt", tmp_path)
    for query in (["--caption", "a"], ["--image", "4"]):
        assert crossret("search", tmp_path, "--model", trained, *query) == 2
        assert f"{tmp_path}/test_ims.npy: item 4 has features that are not finite" in crossret.err
        assert crossret.err.count("\n") == 1


@pytest.mark.filterwarnings("error")
def test_scores_that_are_not_finite_are_written_with_a_warning(crossret: Cli, tmp_path: Path) -> None:
    words = np.ones((3, 2, 4))
    words[1, 0, 0] = 1e300
    np.save(tmp_path / "regions.npy", np.ones((2, 2, 4), np.float32))
    np.save(tmp_path / "words.npy", words)
    sides = ["--regions", tmp_path / "regions.npy", "--words", tmp_path / "words.npy"]
    assert crossret("score", *sides, "--output", tmp_path / "scores.npy") == 0
    warning = f"{tmp_path}/words.npy: item 1 has features that are not finite in float32"
    assert crossret.err == f"crossret: warning: {tmp_path}/scores.npy: not all scores are finite: {warning}\n"
    assert np.isfinite(np.load(tmp_path / "scores.npy")).all(0).tolist() == [True, False, True]


def test_features_have_no_captions_to_show(crossret: Cli, data: Path, trained: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.ones((3, 2, 4), np.float32))
    assert crossret("search", tmp_path, "--words", tmp_path / "features.npy") == 0
    assert "score" in crossret.out and "caption" not in crossret.out.split("searched")[1]
    assert crossret("search", data, "--model", trained, "--image", "0") == 0
    assert "caption" in crossret.out.split("searched")[1]


@pytest.mark.parametrize("arguments", [["--version"], ["search", "{tmp}", "--words", "{tmp}/features.npy"]])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    np.save(tmp_path / "features.npy", np.ones((3, 2, 4), np.float32))
    command = [sys.executable, "-m", "crossret.cli", *(argument.format(tmp=tmp_path) for argument in arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "crossret: standard output: No space left on device\n")


def test_an_interrupted_training_resumes_to_the_same_weights(crossret: Cli, data: Path, tmp_path: Path) -> None:
    command = ["train", data, *TINY, "--epochs", "4", "--threads", "1"]
    assert crossret(*command, "--output", tmp_path / "whole") == 0

    stopped = tmp_path / "stopped"
    with start(*command, "--output", stopped) as process:
        log = stopped / "log.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert "crossret: interrupted; to go on, repeat the command with --resume\n" in err
    assert "Traceback" not in err
    before = load_file(stopped / "checkpoint.safetensors")

    assert crossret(*command, "--output", stopped, "--resume") == 0
    whole, resumed = (load_file(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "stopped"))
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name
    assert any(not torch.equal(tensor, before[name]) for name, tensor in whole.items())


def test_resuming_with_other_threads_is_one_line(crossret: Cli, data: Path, tmp_path: Path) -> None:
    command = ["train", data, *TINY, "--output", tmp_path]
    assert crossret(*command, "--epochs", "1", "--threads", "1") == 0
    try:
        assert crossret(*command, "--epochs", "1", "--threads", "2", "--resume") == 0
    finally:
        torch.set_num_threads(1)
    assert crossret.err.startswith("crossret: warning: ")
    assert "written with 1 thread" in crossret.err
    assert crossret.err.count("\n") == 1


def test_resuming_with_other_data_is_refused(crossret: Cli, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    command = ["train", copy, *TINY, "--output", tmp_path / "run", "--epochs", "1"]
    assert crossret(*command) == 0
    captions = (copy / "dev_caps.txt").read_text()
    (copy / "dev_caps.txt").write_text(captions.replace("picture 3", "picture 4", 1))
    assert crossret(*command, "--resume") == 2
    assert "was trained with development data = " in crossret.err


def test_an_interruption_before_the_first_checkpoint_says_so(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", interrupted)
    assert crossret("train", data, "--output", tmp_path / "run") == 130
    assert crossret.err == "crossret: interrupted; there is no checkpoint yet\n"
