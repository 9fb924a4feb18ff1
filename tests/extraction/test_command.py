"""`crossret extract`: from PNG files and captions to training, search and pictures of attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from crossret.data import PrecomputedDataset, tokenize
from crossret.data.corpus import PrecomputedCorpus
from crossret.files.features import StoredItems
from tests.cli.command import TINY, Cli


def test_from_pictures_to_attention_on_them(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    clip = folder_of("clip")
    for split in ("train", "dev", "test"):
        pictures, captions = scenes / "images" / split, scenes / f"{split}.tsv"
        options = ["--encoder", clip, "--output", data, "--split", split, "--captions", captions, "--float16"]
        assert crossret("extract", pictures, *options, "--text-encoder", clip, "--batch-size", "5") == 0
    words = StoredItems.of_directory(data / "test_words")
    assert crossret.out.splitlines() == [
        f"{data}: 4 pictures of test, 16 tokens of 16 each",
        f"{data}: 20 captions, {len(words.values)} tokens",
    ]
    own, rendered = PrecomputedDataset(data, "test"), PrecomputedDataset(scenes, "test")
    assert own.captions == rendered.captions
    corpus = PrecomputedCorpus(own, None)
    assert corpus.text_dim == 16
    assert [own.captions[1][start:end].lower() for start, end in corpus.spans(1)] == tokenize(own.captions[1])
    assert own.features.dtype == np.float16 and words.values.dtype == np.float16
    assert own.boxes is not None and rendered.boxes is not None
    assert own.boxes.max() == own.boxes[0, -1, 2] >= rendered.boxes.max()

    on_words = ["--output", run, "--captions", "words", "--epochs", "1"]
    assert crossret("train", data, *on_words, *TINY) == 0
    assert crossret("search", run, data, "--split", "test", "--caption", "a red circle", "-k", "2") == 0
    assert any(f"0000{number}" in crossret.out for number in range(4))
    drawn = tmp_path / "drawn"
    photographs = scenes / "images" / "test"
    assert crossret("explain", run, data, "--photographs", photographs, "--draw", "1", "--output", drawn) == 0
    assert [path.name for path in drawn.iterdir()] == ["00000.png"]
    on_tokens = ["--output", tmp_path / "tokens", "--epochs", "1", "--set", "embed_dim=8", "--batch-size", "16"]
    assert crossret("train", data, *on_tokens) == 0, crossret.err
    options = ["--photographs", photographs, "--draw", "1", "--output", tmp_path / "drawn of tokens"]
    assert crossret("explain", tmp_path / "tokens", data, *options) == 0, crossret.err
    assert [path.name for path in (tmp_path / "drawn of tokens").iterdir()] == ["00000.png"]
    # Both towers are as wide here, so that tokens are scored as they are.
    scores = tmp_path / "scores.npy"
    sides = ["--regions", data / "test_ims.npy", "--words", data / "test_words"]
    assert crossret("score", *sides, "--output", scores, "--sum-max", "--normalize") == 0
    assert np.load(scores).shape == (4, 20)


def test_mistakes_are_one_line(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli) -> None:
    pictures, output = scenes / "images" / "dev", tmp_path / "data"
    vit = folder_of("vit")
    for options, message in (
        (["--encoder", vit, "--text-encoder", folder_of("bert")], "an encoder of texts needs captions: a file of "),
        (["--encoder", vit, "--captions-per-picture", "1"], "--captions-per-picture needs --captions"),
        (["--encoder", folder_of("bert")], "bert: model_type 'bert' is no encoder of pictures"),
        (["--encoder", vit, "--device", "cuda:77"], "--device cuda:77: "),
    ):
        assert message in crossret.refused("extract", pictures, "--output", output, *options)
    err = crossret.refused("extract", tmp_path, "--output", output, "--encoder", "no-such-model")
    assert err.endswith(f"{tmp_path}: no pictures in it\n")  # told before the encoder is looked for
    assert not output.exists()


def test_what_is_left_out_is_said(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for path in (scenes / "images" / "dev").iterdir():
        (pictures / path.name).write_bytes(path.read_bytes())
    (pictures / "00001.png").write_text("no picture")
    (pictures / "00002.png").rename(pictures / "00002")
    for number in range(6):
        (pictures / f"{number}.txt").write_text("no picture")
    named = (scenes / "dev.tsv").read_text().replace("00002.png", "00002").splitlines()
    lines = [line for line in named if "00003" not in line]
    (tmp_path / "captions.tsv").write_text("\n".join(lines) + "\n")
    options = ["--encoder", folder_of("vit"), "--output", tmp_path / "data", "--captions", tmp_path / "captions.tsv"]
    assert crossret("extract", pictures, *options, "--captions-per-picture", "1", "--unreadable", "skip", "--amp") == 0
    assert "crossret: warning: left out: " in crossret.err and "00001.png: not a readable image" in crossret.err
    assert crossret.out.splitlines() == [
        f"{tmp_path / 'data'}: 2 pictures of train, 16 tokens of 16 each",
        f"{tmp_path / 'data'}: 2 captions",
        "left out, as they could not be read: 1 (00001.png)",
        "left out, as they are no pictures: 6 (0.txt, 1.txt, 2.txt, 3.txt, 4.txt, ...)",
        f"left out, as {tmp_path / 'captions.tsv'} does not name them: 1 pictures",
    ]
