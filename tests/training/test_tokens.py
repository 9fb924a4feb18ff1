"""Captions as tokens of a pretrained encoder: every model learns from them, and refuses what has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus, fields_of_data
from crossret.data.precomputed import CAPTIONS_READ
from crossret.evaluation import encode_dataset, score_matrix
from crossret.files.json import read_json_lines
from crossret.files.lines import digest
from crossret.models import MODELS
from crossret.training import TrainingConfig, load_model, train
from tests.cli.command import Cli
from tests.models.batch import EVERY_MODEL, FEATURES, LENGTHS, REGION_LENGTHS, SMALL, double, items, make

DIM, TEXT_DIM = 6, 7
CONFIG = TrainingConfig(epochs=6, decay_epochs=(), batch_size=16, learning_rate=1e-2, log_every=1)
TOKENS = torch.randn(3, 5, TEXT_DIM, generator=torch.Generator().manual_seed(2))


def write_split(directory: Path, split: str, n: int, *, dtype: str = "<f4") -> None:
    """Images, two captions of each, and one to four tokens of these, in which an object's look is turned."""
    random, of_all = np.random.default_rng([n, 1]), np.random.default_rng(0)
    looks, turned = of_all.standard_normal((8, DIM)), of_all.standard_normal((DIM, TEXT_DIM))
    objects = random.integers(0, 8, (n, 4))
    np.save(directory / f"{split}_ims.npy", looks[objects].astype(np.float32))
    lengths = random.integers(2, 5, 2 * n)
    (directory / f"{split}_caps.txt").write_text("".join(f"picture {i // 2} {i}\n" for i in range(2 * n)))
    words = directory / f"{split}_words"
    words.mkdir()
    values = [looks[objects[i // 2, :length]] @ turned for i, length in enumerate(lengths)]
    np.save(words / "values.npy", np.concatenate(values).astype(dtype))
    np.save(words / "offsets.npy", np.concatenate([[0], lengths.cumsum()]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokens")
    for split, n in (("train", 40), ("dev", 10), ("test", 10)):
        write_split(directory, split, n)
    return directory


def link_dev(data: Path, directory: Path) -> Path:
    """The development split's files in another directory, but for its tokens: their directory, which is empty."""
    for path in data.glob("dev_*s.*"):
        (directory / path.name).symlink_to(path)
    words = directory / "dev_words"
    words.mkdir()
    return words


def corpora(data: Path) -> list[PrecomputedCorpus]:
    return [PrecomputedCorpus(PrecomputedDataset(data, split), None) for split in ("train", "dev")]


def started(kind: str, data: Path, **fields: Any) -> tuple[Any, list[PrecomputedCorpus]]:
    config_class, model_class = MODELS[kind]
    learnt, judged = corpora(data)
    torch.manual_seed(0)
    sizes = fields_of_data(config_class, learnt)
    return model_class(config_class(**sizes, embed_dim=16, **SMALL[kind], **fields)), [learnt, judged]


@EVERY_MODEL
def test_a_model_learns_and_is_loaded(kind: str, data: Path, tmp_path: Path) -> None:
    model, both = started(kind, data)
    assert not hasattr(model.text, "embed")
    train(model, *both, CONFIG, tmp_path, progress=False)
    losses = [line["loss"] for line in read_json_lines(tmp_path / "log.jsonl") if line["kind"] == "step"]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert not (tmp_path / "best" / "vocabulary.json").exists()
    best, words = load_model(tmp_path / "best")
    assert words is None and best.config.text_dim == TEXT_DIM
    assert score_matrix(best, *encode_dataset(best, both[1])).std() > 0
    # A caption's tokens are its own, whatever it is batched with.
    alone = best.encode_captions(*both[1].captions(np.array([3])))
    beside = best.encode_captions(*both[1].captions(np.array([0, 3, 5])))[1:2].trimmed()
    torch.testing.assert_close(alone.sequences, beside.sequences)


@EVERY_MODEL
def test_scores_are_those_of_the_papers_layers_over_a_linear_map(kind: str) -> None:
    """In float64: what stands for a GRU's states is the linear layer of the tokens, the rest is the model's own."""
    fields = {"vocabulary_size": 0, "text_dim": TEXT_DIM}
    model = double(make(kind, **fields))
    weight, bias = model.text.fc.weight, model.text.fc.bias
    own = [rows @ weight.T + bias for rows in items(TOKENS, LENGTHS)]
    if kind == "oan":
        own = [rows.tanh() for rows in own]
    if kind == "scan":
        own = [rows / rows.norm(dim=1, keepdim=True) for rows in own]
    images = model.encode_images(FEATURES.double(), REGION_LENGTHS)
    captions = model.encode_captions(TOKENS.double(), LENGTHS)
    if kind == "vse":
        expected = torch.stack([rows.mean(0) / rows.mean(0).norm() for rows in own])
        torch.testing.assert_close(captions.sequences[:, 0], expected)
        torch.testing.assert_close(model.score(images, captions), images.sequences[:, 0] @ expected.T)
        return
    padded = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
    model.text.forward = lambda tokens, lengths: padded
    torch.testing.assert_close(model.score(images, model._captions(TOKENS, LENGTHS)), model.score(images, captions))
    if kind in ("scan", "han", "oan", "sman"):
        torch.testing.assert_close(captions.sequences, padded)


def test_of_many_tokens_the_first_are_read() -> None:
    model = make("scan", vocabulary_size=0, text_dim=TEXT_DIM, max_words=2)
    cut, first = model.encode_captions(TOKENS, LENGTHS), model.encode_captions(TOKENS[:, :2], LENGTHS.clamp(max=2))
    assert torch.equal(cut.sequences, first.sequences) and torch.equal(cut.lengths, first.lengths)


def test_the_first_images_have_their_tokens(data: Path) -> None:
    whole = corpora(data)[0]
    first = PrecomputedCorpus(PrecomputedDataset(data, "train").first(3), None)
    (tokens, lengths), (others, other_lengths) = first.captions(slice(None)), whole.captions(slice(6))
    assert torch.equal(tokens, others) and torch.equal(lengths, other_lengths) and len(lengths) == 6
    assert first.fingerprint() != whole.fingerprint()


def test_padded_tokens_are_read_as_packed_ones(data: Path, tmp_path: Path) -> None:
    tokens, lengths = corpora(data)[1].captions(slice(None))
    words = link_dev(data, tmp_path)
    np.save(words / "features.npy", tokens.numpy().astype("<f2"))
    np.save(words / "lengths.npy", lengths.numpy())
    padded = PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), None)
    again, same = padded.captions(np.array([7, 2]))
    assert same.tolist() == lengths[[7, 2]].tolist() and again.dtype == torch.float32
    torch.testing.assert_close(again, tokens[[7, 2], : again.shape[1]], rtol=1e-3, atol=1e-3)
    assert padded.spans(0) is None


def test_other_tokens_are_another_training(data: Path, tmp_path: Path) -> None:
    words = link_dev(data, tmp_path)
    (words / "offsets.npy").symlink_to(data / "dev_words" / "offsets.npy")
    values = np.load(data / "dev_words" / "values.npy")
    found = set()
    for added in (0, 1):
        np.save(words / "values.npy", values + np.float32(added))
        found.add(PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), None).fingerprint())
    assert len(found) == 2 and corpora(data)[1].fingerprint() in found


def test_the_command_takes_tokens_where_they_are(data: Path, tmp_path: Path, crossret: Cli) -> None:
    run, scores = tmp_path / "run", tmp_path / "scores.npy"
    tiny = ["--set", "embed_dim=8", "--batch-size", "16", "--epochs", "1"]
    assert crossret("train", data, "--output", run, *tiny) == 0, crossret.err
    assert "tokens of 7 numbers" in " ".join(crossret.err.split())
    assert 'captions = "tokens"' in (run / "run.toml").read_text()
    assert crossret("evaluate", run, data, "--scores", scores) == 0, crossret.err
    assert crossret("encode", run, data, "--output", tmp_path / "encoded") == 0, crossret.err
    assert crossret("search", run, tmp_path / "encoded", "--image", "3") == 0, crossret.err
    assert crossret("search", run, data, "--image", "3", "--output", tmp_path / "found.jsonl") == 0, crossret.err
    (found,) = map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())
    assert found["results"][0]["index"] == np.load(scores)[3].argmax()
    assert crossret("search", run, data, "--caption", "a dog") != 0
    assert "which encoder makes them is not known" in crossret.err
    assert crossret("train", data, "--config", run / "run.toml", "--output", tmp_path / "again", "--seed", "1") == 0
    assert 'captions = "tokens"' in (tmp_path / "again" / "run.toml").read_text()


def test_words_are_read_where_that_is_asked_for_or_there_are_no_tokens(
    data: Path, tmp_path: Path, crossret: Cli
) -> None:
    tiny = ["--set", "embed_dim=8 word_dim=4", "--min-count", "1", "--epochs", "1"]
    assert crossret("train", data, "--output", tmp_path / "words", "--captions", "words", *tiny) == 0, crossret.err
    model, words = load_model(tmp_path / "words" / "best")
    assert words is not None and model.config.text_dim is None
    some = tmp_path / "some"
    some.mkdir()
    link_dev(data, some).rmdir()
    for path in data.glob("train_*"):
        (some / path.name).symlink_to(path)
    assert crossret("train", some, "--output", tmp_path / "others", *tiny) == 0, crossret.err
    assert load_model(tmp_path / "others" / "best")[1] is not None
    assert crossret("train", some, "--output", tmp_path / "none", "--captions", "tokens") == 2
    assert "dev_words: no such directory" in crossret.err and "--text-encoder" in crossret.err
    assert crossret("train", data, "--output", tmp_path / "none", "--min-count", "1") == 2
    assert "--captions words" in crossret.err
    assert crossret("train", data, "--output", tmp_path / "none", "--set", "word_dim=4") == 2
    assert "word_dim=4 makes no difference to this scan, which reads tokens of captions" in crossret.err
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_read_is_told(data: Path, tmp_path: Path) -> None:
    model, (learnt, judged) = started("scan", data)
    of_words = PrecomputedCorpus(PrecomputedDataset(data, "dev"), Vocabulary(["picture"]))
    reads_words = MODELS["scan"][1](MODELS["scan"][0](image_dim=DIM, vocabulary_size=9, embed_dim=8, word_dim=4))
    write_split(tmp_path, "dev", 10, dtype="<f2")
    words = tmp_path / "dev_words"
    values = np.load(words / "values.npy")
    values[4] = np.nan
    np.save(words / "values.npy", values)
    broken = PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), None)
    for reader, train_data, dev_data, message in (
        (model, of_words, of_words, "captions are words, but the model reads tokens of 7 numbers"),
        (model, learnt, of_words, "dev_data: its vocabulary"),
        (reads_words, learnt, judged, "captions are tokens, but the model reads 9 words"),
        (model, learnt, broken, r"values.npy: item 1 has features that are not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            train(reader, train_data, dev_data, CONFIG, tmp_path / "run", progress=False)
    assert not list((tmp_path / "run").glob("*"))
    with pytest.raises(ValueError, match=r"tokens must have shape \(n, W, 7\), got \(3, 5, 6\)"):
        model.encode_captions(TOKENS[:, :, :6], LENGTHS)
    with pytest.raises(TypeError, match=r"tokens must be floating point, got torch\.int64"):
        model.encode_captions(TOKENS.long(), LENGTHS)
    model.config = MODELS["scan"][0](image_dim=DIM, vocabulary_size=0, text_dim=9)
    with pytest.raises(ValueError, match="dev_words: tokens of captions have 7 numbers, but the model's text_dim is 9"):
        encode_dataset(model, judged)
    np.save(words / "offsets.npy", np.load(words / "offsets.npy")[[0, -1]])
    with pytest.raises(ValueError, match="dev_words: tokens of 1 captions, not of 20"):
        PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), None)


def test_tokens_of_other_captions_are_told(tmp_path: Path) -> None:
    write_split(tmp_path, "dev", 3)
    (tmp_path / "dev_words" / CAPTIONS_READ).write_text(f"{digest(PrecomputedDataset(tmp_path, 'dev').captions)}\n")
    assert len(PrecomputedDataset(tmp_path, "dev").first(2).words) == 6
    captions = (tmp_path / "dev_caps.txt").read_text().splitlines(keepends=True)
    (tmp_path / "dev_caps.txt").write_text("".join(reversed(captions)))
    message = rf"^{tmp_path}/dev_words: tokens of other captions than {tmp_path}/dev_caps.txt has: extract again$"
    with pytest.raises(ValueError, match=message):
        PrecomputedCorpus(PrecomputedDataset(tmp_path, "dev"), None)


@pytest.mark.parametrize("wrong", [[-1, 2], [3, 2], [0, 99]])
def test_words_that_are_not_in_the_caption_are_told(wrong: list[int], tmp_path: Path) -> None:
    write_split(tmp_path, "dev", 3)
    rows = len(np.load(tmp_path / "dev_words" / "values.npy"))
    spans = np.tile(np.int32([0, 7]), (rows, 1))
    np.save(tmp_path / "dev_words" / "spans.npy", spans)
    np.testing.assert_array_equal(PrecomputedDataset(tmp_path, "dev").word_spans, spans)
    spans[4] = wrong
    np.save(tmp_path / "dev_words" / "spans.npy", spans)
    with pytest.raises(ValueError, match=r"dev_words/spans.npy: row 4: .* are no places in its caption$"):
        _ = PrecomputedDataset(tmp_path, "dev").word_spans
