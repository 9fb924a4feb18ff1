"""The command line: every command does its work, every mistake is one line and exit code 2, Ctrl-C can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from crossret import cli
from crossret_kernels import maxsim_scores, scan_scores

TINY = ["--embed-dim", "8", "--word-dim", "4", "--batch-size", "16", "--learning-rate", "0.01"]
COMMANDS = ["demo", "render-scenes", "train", "evaluate", "score"]
ROOT = Path(__file__).parents[1]


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
        (["evaluate", "{tmp}", "{data}"], "model.safetensors: no such file"),
        (["evaluate", "{trained}", "{data}", "--split", "testall"], "testall_ims.npy: no such file"),
        (["evaluate", "{trained}", "{data}", "--json", "{tmp}/absent/figures.json"], "no directory {tmp}/absent"),
        (["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/absent/y.npy"], "{tmp}/absent"),
        (["score", "--regions", "{tmp}/x.npy", "--words", "{tmp}/x.npy", "--output", "{tmp}/y.npy"], "x.npy"),
        (["score", "--regions", "{text}", "--words", "{text}", "--output", "{tmp}/y.npy"], "not a readable .npy file"),
        (["render-scenes", "{text}"], "train_caps.txt"),
        (["render-scenes", "{tmp}/scenes", "--train", "0"], "--train"),
        (["demo", "--output", "{tmp}/demo", "--images", "1"], "--images"),
        (["demo", "--output", "{data}"], "{data}: not empty, and not an earlier demo's"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    crossret: Cli, data: Path, trained: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    places = {"data": data, "trained": trained, "tmp": tmp_path, "text": data / "train_caps.txt"}
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


def test_an_interruption_before_the_first_checkpoint_says_so(
    crossret: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossret.training.train", interrupted)
    assert crossret("train", data, "--output", tmp_path / "run") == 130
    assert crossret.err == "crossret: interrupted; there is no checkpoint yet\n"
