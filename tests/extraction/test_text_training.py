"""Training through an encoder of texts: gradients reach it, what is frozen gives the stored tokens' scores, and a run
reads captions by itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import crossret as library
from crossret.data import PrecomputedDataset, tokenize
from crossret.data.corpus import PrecomputedCorpus, fields_of_data
from crossret.data.named_encoder import NamedEncoder
from crossret.data.prepared import Prepared
from crossret.data.scenes.grounding import Grounding
from crossret.evaluation import encode_dataset, score_matrix
from crossret.explain.rows import Rows
from crossret.extraction import load_text_encoder
from crossret.extraction.protocol import TextEncoder
from crossret.extraction.resuming import identity
from crossret.files.json import write_json
from crossret.hyperparameters import ScanConfig
from crossret.models import Scan, load_model, save_model
from crossret.models.attention import AttentionMap
from crossret.models.checkpoints import with_config
from crossret.models.contributions import ScoreShares, SharePart
from crossret.models.texts import load_named
from crossret.picture_index.updating import update_index
from crossret.training import train
from tests.cli.command import Cli
from tests.explain.test_page import data_of
from tests.extraction.learning import CONFIG, Started, check_goes_on, check_gradients
from tests.extraction.models import save_texts_model
from tests.extraction.stand_in import Columns

TINY = ["--set", "embed_dim=8", "--batch-size", "16", "--learning-rate", "0.01", "--epochs", "1"]


def with_tokens(scenes: Path, encoder: TextEncoder, directory: Path) -> Path:
    """The same data with what the encoder makes of the captions, as it is stored."""
    shutil.copytree(scenes, directory)
    for split in ("train", "dev", "test"):
        captions = PrecomputedDataset(directory, split).captions
        with torch.inference_mode():
            tokens = encoder.encode_texts(captions)
        words = directory / f"{split}_words"
        words.mkdir()
        assert tokens.spans is not None
        np.save(words / "values.npy", tokens.values.numpy())
        np.save(words / "spans.npy", tokens.spans)
        np.save(words / "offsets.npy", np.cumsum([0, *tokens.lengths]))
        write_json(words / "encoder.json", asdict(NamedEncoder.of(encoder.name, identity(encoder))))
    return directory


def started(data: Path, encoder: TextEncoder | None) -> Started:
    """A model with an encoder of texts, or on tokens, and what it learns from."""
    both = [PrecomputedCorpus(PrecomputedDataset(data, split), None, encoder) for split in ("train", "dev")]
    torch.manual_seed(0)
    model = Scan(ScanConfig(**fields_of_data(ScanConfig, both[0]), embed_dim=16))
    if encoder is not None:
        model.read_texts_by(encoder)
    return model, both


@pytest.mark.parametrize("kind", ["bert", "siglip"])
def test_gradients_reach_the_encoder(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    check_gradients(lambda: started(scenes, load_text_encoder(folder_of(kind))), "text_encoder", tmp_path)


def test_a_training_goes_on_bit_for_bit(scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    check_goes_on(lambda: started(scenes, load_text_encoder(folder_of("bert"))), "text_encoder", tmp_path)


def test_stored_tokens_and_a_frozen_encoder_give_the_same_scores(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder = load_text_encoder(folder_of("bert"))
    data = with_tokens(scenes, encoder, tmp_path / "data")
    scores, spans = [], []
    for reader in (None, encoder):
        model, both = started(data, reader)
        if reader is not None:
            model.text_encoder.requires_grad_(False)
            model.train()
            assert model.text.training and not any(part.training for part in model.text_encoder.modules())
        train(model, *both, CONFIG, tmp_path / f"{reader is None}", progress=False)
        scores.append(score_matrix(model, *encode_dataset(model, both[1])))
        spans.append(both[1].spans(3).tolist())
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
    assert spans[0] == spans[1] and spans[0][0][0] == 0


def test_a_model_of_stored_tokens_reads_new_captions(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    """The encoder that made its tokens reads them: it is known by name and told from others."""
    folder = tmp_path / "bert"
    shutil.copytree(folder_of("bert"), folder)
    data, run = with_tokens(scenes, load_text_encoder(folder), tmp_path / "data"), tmp_path / "run"
    assert crossret("train", data, "--output", run, *TINY) == 0, crossret.err
    retriever, captions = library.load(run), PrecomputedDataset(data, "test").captions
    scores = retriever.similarity(data / "test_ims.npy", captions)
    assert crossret("evaluate", run, data, "--scores", tmp_path / "scores.npy") == 0, crossret.err
    np.testing.assert_allclose(scores.numpy(), np.load(tmp_path / "scores.npy"), atol=1e-5)
    explanation = retriever.explain(retriever.encode_images(data / "test_ims.npy")[:1], "a red circle unheard of")
    assert explanation.words == ["a", "red", "circle", "unheard", "of"]
    retriever.save_pretrained(tmp_path / "saved")
    assert "a dog on the grass" in (card := (tmp_path / "saved" / "README.md").read_text()) and str(folder) not in card
    assert torch.equal(library.load(tmp_path / "saved").similarity(data / "test_ims.npy", captions), scores)
    tuned = ["--fine-tune", run, "--epochs", "1", "--batch-size", "16"]
    assert crossret("train", data, "--output", tmp_path / "tuned", *tuned) == 0, crossret.err
    assert load_model(tmp_path / "tuned" / "best")[0].captions_by == retriever.model.captions_by
    folder.rename(tmp_path / "moved")
    search = ["search", run, data, "--caption", captions[2], "--output", tmp_path / "found.jsonl"]
    load_named.cache_clear()
    err = crossret.refused(*search)
    assert str(folder) in err and "--text-encoder says where it is" in err
    assert crossret(*search, "--text-encoder", tmp_path / "moved") == 0, crossret.err
    (entry,) = map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())
    assert entry["results"][0]["score"] == pytest.approx(scores[:, 2].max().item(), rel=1e-5)
    other = load_text_encoder(tmp_path / "moved")
    with torch.no_grad():
        next(other.module.parameters()).mul_(2)
    other.module.save_pretrained(tmp_path / "moved")
    load_named.cache_clear()
    assert "another encoder of texts than the one" in crossret.refused(*search, "--text-encoder", tmp_path / "moved")
    foreign = with_tokens(scenes, other, tmp_path / "foreign")
    assert f"{foreign / 'test_words'}: tokens by" in crossret.refused("evaluate", run, foreign)
    shutil.copytree(foreign / "dev_words", data / "dev_words", dirs_exist_ok=True)
    assert "dev_words: tokens by" in crossret.refused("train", data, "--output", tmp_path / "none", *TINY)


def test_a_saved_model_leaves_nothing_of_the_one_before(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder = load_text_encoder(folder_of("bert"))
    model, _ = started(scenes, encoder)
    save_model(model, tmp_path, None)
    assert (tmp_path / "text_encoder").is_dir()
    plain = Scan(model.config)
    plain.captions_by = NamedEncoder("models/bert", "0")
    save_model(plain, tmp_path, None)
    assert not (tmp_path / "text_encoder").exists()
    assert load_model(tmp_path)[0].captions_by == plain.captions_by
    save_model(Scan(model.config), tmp_path, None)
    assert load_model(tmp_path)[0].captions_by is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "vocabulary.json").write_text("{}")  # of no model
    save_model(plain, tmp_path / "mine", None)
    assert (tmp_path / "mine" / "vocabulary.json").exists()


def test_a_loss_that_is_to_start_otherwise_does() -> None:
    """A model that is fine-tuned takes a new scale."""
    config = ScanConfig(image_dim=3, vocabulary_size=5, embed_dim=4, word_dim=4, loss="infonce")
    again = with_config(Scan(config), replace(config, loss_scale=3.0), "x")
    assert again.matching_loss.log_scale.exp().item() == pytest.approx(3)


def test_a_run_reads_captions_by_itself(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    run, folder = tmp_path / "run", folder_of("bert")
    through = ["--text-encoder", folder, "--encoder-learning-rate", "0.01", "--checkpoint-encoder"]
    assert crossret("train", scenes, "--output", run, *TINY, *through) == 0, crossret.err
    assert "texts, read by" in " ".join(crossret.err.split())
    best, words = load_model(run / "best")
    assert words is None and not (run / "best" / "vocabulary.json").exists()
    before = load_text_encoder(folder).module.state_dict()
    assert not torch.equal(best.text_encoder.module.state_dict()[name := next(iter(before))], before[name])
    figures = ["--output", tmp_path / "figures.json", "--scores", tmp_path / "scores.npy", "--pointing-game"]
    assert crossret("evaluate", run, scenes, *figures) == 0, crossret.err
    (game,) = json.loads((tmp_path / "figures.json").read_text())["models"][0]["pointing_game"]
    assert game["asked"] > 0
    retriever = library.load(run)
    captions = PrecomputedDataset(scenes, "test").captions
    found = retriever.similarity(scenes / "test_ims.npy", captions)
    np.testing.assert_allclose(found.numpy(), np.load(tmp_path / "scores.npy"), atol=1e-5)
    retriever.save_pretrained(tmp_path / "saved")
    assert torch.equal(library.load(tmp_path / "saved").similarity(scenes / "test_ims.npy", captions), found)
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "captions as tokens of 16 numbers" in card and str(tmp_path) not in card.replace(f'"{tmp_path}/saved"', "")
    assert crossret("search", run, scenes, "--caption", captions[2], "--output", tmp_path / "found.jsonl") == 0
    (entry,) = map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())
    assert entry["results"][0]["score"] == pytest.approx(found[:, 2].max().item(), rel=1e-5)
    assert crossret("explain", run, scenes, "--html", tmp_path / "page.html", "--number", "2") == 0, crossret.err
    page = data_of(tmp_path / "page.html")["pairs"]
    assert [word.lower() for word in page[0]["words"]] == tokenize(captions[2])  # neither <start> nor <end>
    regions = retriever.encode_images(scenes / "test_ims.npy")[:1]
    explanation = retriever.explain(regions, "a red circle unheard of")
    assert explanation.words == ["a", "red", "circle", "unheard", "of"]
    assert explanation.maps[0].weights.shape[1] == 5
    assert crossret("explain", run, scenes, "--output", tmp_path / "drawn") == 0, crossret.err
    # Captions that lack words are read as all others are.
    assert crossret("perturb", scenes, "--output", tmp_path / "nounless", "--drop", "noun") == 0, crossret.err
    other = ["--output", tmp_path / "others", "--text-encoder", folder, "--freeze-text-encoder"]
    assert crossret("train", tmp_path / "nounless", *other, *TINY) == 0, crossret.err
    frozen, _ = load_model(tmp_path / "others" / "best")
    assert all(torch.equal(each, before[name]) for name, each in frozen.text_encoder.module.state_dict().items())
    tuned = ["--fine-tune", run, "--set", "negatives=hardest", "--epochs", "1", "--batch-size", "16"]
    assert crossret("train", scenes, "--output", tmp_path / "tuned", *tuned) == 0, crossret.err
    kept, changed = (
        next(model.text_encoder.module.parameters()) for model in (best, load_model(tmp_path / "tuned" / "best")[0])
    )
    assert 0 < (changed - kept).abs().max() < 1e-3  # at the encoder's rate
    again = ["--config", run / "run.toml", "--output", tmp_path / "again", "--seed", "1"]
    assert crossret("train", scenes, *again) == 0, crossret.err
    assert load_model(tmp_path / "again" / "best")[0].text_encoder is not None
    for wrong, message in (
        (["--freeze-text-encoder"], "needs --text-encoder"),
        (["--text-encoder", folder, "--captions", "tokens"], "makes no difference with --text-encoder"),
        (["--text-encoder", folder, "--min-count", "2"], "makes no difference with --text-encoder"),
        (["--text-encoder", folder, "--freeze-text-encoder", "--checkpoint-encoder"], "--freeze-text-encoder"),
        (["--text-encoder", folder, "--fine-tune", run], "has an encoder"),
    ):
        assert message in crossret.refused("train", scenes, "--output", tmp_path / "none", *TINY, *wrong)


def test_both_towers_of_one_folder(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    run, folder = tmp_path / "run", folder_of("siglip")
    assert crossret("train", scenes, "--output", run, *TINY, "--encoder", folder, "--text-encoder", folder) == 0
    model, _ = load_model(run / "best")
    towers = [model.encoder.module, model.text_encoder.module]
    assert [type(tower.config).__name__ for tower in towers] == ["SiglipVisionConfig", "SiglipTextConfig"]
    assert crossret("evaluate", run, scenes, "--scores", tmp_path / "scores.npy") == 0, crossret.err
    pictures = sorted((scenes / "images" / "test").iterdir())
    scores = library.load(run).similarity(pictures, PrecomputedDataset(scenes, "test").captions)
    np.testing.assert_allclose(scores.numpy(), np.load(tmp_path / "scores.npy"), atol=1e-5)
    index = ["index", scenes / "images" / "test", "--model", run, "--output", tmp_path / "index"]
    assert crossret(*index) == 0, crossret.err
    assert crossret("search", tmp_path / "index", "a red circle", "--html", tmp_path / "why.html") == 0, crossret.err


@pytest.mark.parametrize("kind", ["roberta", "t5"])
def test_other_encoders_are_saved_by_their_files(kind: str, scenes: Path, tmp_path: Path) -> None:
    encoder = load_text_encoder(save_texts_model(kind, tmp_path))
    model, both = started(scenes, encoder)
    save_model(model, tmp_path / "saved", None)
    again, _ = load_model(tmp_path / "saved")
    first, second = (each.eval().encode_captions(*both[1].captions(slice(3))) for each in (model, again))
    assert torch.equal(first.sequences, second.sequences)


def test_data_made_of_others_keep_tokens_where_captions_stay(
    scenes: Path, folder_of: Callable[[str], Path], tmp_path: Path, crossret: Cli
) -> None:
    """And models on tokens alone are compared, but refused where texts are to be read."""
    data = with_tokens(scenes, load_text_encoder(folder_of("bert")), tmp_path / "data")
    for named in data.glob("*_words/encoder.json"):  # as data of before have none
        named.unlink()
    assert crossret("perturb", data, "--output", tmp_path / "shuffled", "--shuffle") == 0, crossret.err
    assert not (tmp_path / "shuffled" / "train_words").exists()
    kept = (np.load(place / "dev_words" / "values.npy") for place in (data, tmp_path / "shuffled"))
    np.testing.assert_array_equal(*kept)
    wanted = ["train", tmp_path / "shuffled", "--output", tmp_path / "none", "--captions", "tokens"]
    assert "train_words: no such directory" in crossret.refused(*wanted)
    assert crossret("cluster-regions", data, "--output", tmp_path / "centres", "--clusters", "2") == 0, crossret.err
    run = tmp_path / "run"
    assert crossret("train", tmp_path / "centres", "--output", run, *TINY) == 0, crossret.err
    assert load_model(run / "best")[1] is None
    assert crossret("evaluate", run, data, "--pointing-game") == 0, crossret.err
    assert crossret("explain", run, data, "--html", tmp_path / "page.html", "--number", "0") == 0, crossret.err
    (pair, *_) = data_of(tmp_path / "page.html")["pairs"]
    assert [word.lower() for word in pair["words"]] == tokenize(PrecomputedDataset(data, "test").captions[0])
    err = crossret.refused("evaluate", run, scenes)
    assert "test_words: no such directory" in err and "--text-encoder" in err
    library.load(run).save_pretrained(tmp_path / "saved")
    assert "model.encode_captions(tokens, lengths)" in (tmp_path / "saved" / "README.md").read_text()
    retriever = library.load(run)
    with pytest.raises(ValueError, match="which encoder makes them is not known"):
        retriever.encode_text("a red circle")
    made = PrecomputedCorpus(PrecomputedDataset(data, "test"), None).captions(slice(4))
    found = retriever.search(retriever.model.encode_captions(*made), scenes / "test_ims.npy", k=1)
    assert found.indices.shape == (4, 1)
    with pytest.raises(ValueError, match="no text finds pictures by it"):
        update_index(tmp_path / "index", scenes / "images" / "test", Columns(), retriever.model)


def test_parts_of_a_word_are_one_row() -> None:
    """Of five tokens two are parts of a word, and one is of none."""
    spans = np.array([[0, 3], [0, 3], [4, 8], [0, 0], [9, 10]], np.int32)
    config = ScanConfig(image_dim=2, vocabulary_size=0, text_dim=3)
    rows = Rows.of(config, "cat away b", 5, spans)
    assert rows.labels == rows.words == ("cat", "away", "token 3", "b")
    weights, relevances = torch.rand(1, 5, 3), torch.rand(1, 5)
    (looked,) = rows.merged([AttentionMap("t2i", weights, relevances)])
    torch.testing.assert_close(looked.weights, torch.cat([weights[:, :2].mean(1, keepdim=True), weights[:, 2:]], 1))
    torch.testing.assert_close(looked.relevances[0, 0], relevances[0, :2].mean())
    (seen,) = rows.merged([AttentionMap("i2t", weights)])
    torch.testing.assert_close(seen.weights.sum(1), weights.sum(1))
    (heads,) = rows.merged(
        [AttentionMap("heads", weights[:, :2], queries=("1", "2"), word_weights=torch.rand(1, 2, 5))]
    )
    assert heads.word_weights.shape == (1, 2, 4)
    values = torch.rand(1, 5, dtype=torch.float64)
    shares = ScoreShares(values.sum(1), (SharePart("t2i", "words", values, relevances),))
    merged = rows.merged_shares(shares)
    assert merged is not None
    torch.testing.assert_close(merged.parts[0].values[0], torch.stack([values[0, :2].sum(), *values[0, 2:]]))
    box = np.zeros(4, np.float32)
    assert rows.objects(Grounding(["cat", "away", "b"], {0: box, 2: box})).keys() == {0, 3}
    assert rows.first_token(3) == 4
    unknown = Rows.of(config, "cat away", 2, None)
    assert unknown.labels == ("token 1", "token 2")
    with pytest.raises(ValueError, match=r"is not told: there is no spans\.npy"):
        unknown.objects(Grounding(["cat", "away"], {0: box}))


def test_words_of_tokens(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    encoder = load_text_encoder(folder_of("bert"))
    text = "A small circle, unheard of"
    prepared = encoder.prepare(text)
    assert [text[start:end] for start, end in prepared.spans] == ["A", "small", "circle", ",", "unheard", "of"]
    tokens = encoder.encode([prepared, encoder.prepare("red")])
    assert tokens.lengths == [6, 1] and tokens.spans.tolist()[6:] == [[0, 3]]
    elsewhere = shutil.copytree(folder_of("bert"), tmp_path / "elsewhere")
    assert load_text_encoder(elsewhere).settings() == encoder.settings()
    parts = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##happ", "##y"])}
    encoder.tokenizer = BertTokenizerFast(vocab=parts)
    spans = encoder.prepare("An unhappy dog").spans
    assert spans.tolist() == [[0, 2], [3, 10], [3, 10], [3, 10], [11, 14]]
    config = ScanConfig(image_dim=2, vocabulary_size=0, text_dim=16)
    assert Rows.of(config, "An unhappy dog", 5, spans).words == ("An", "unhappy", "dog")


def test_what_cannot_be_read(scenes: Path, folder_of: Callable[[str], Path]) -> None:
    encoder = load_text_encoder(folder_of("bert"))
    with pytest.raises(ValueError, match=r"tokens have 16 numbers, but the model's text_dim is 5"):
        Scan(ScanConfig(image_dim=5, vocabulary_size=0, text_dim=5)).read_texts_by(encoder)
    model, _ = started(scenes, encoder)
    with pytest.raises(ValueError, match="the model has its own text encoder"):
        model.read_texts_by(encoder)
    with pytest.raises(ValueError, match="columns: encoders of this kind only extract"):
        Scan(ScanConfig(image_dim=5, vocabulary_size=0, text_dim=4)).read_texts_by(Columns())
    with pytest.raises(ValueError, match="tokens are texts, but this scan has no encoder"):
        Scan(ScanConfig(image_dim=5, vocabulary_size=0, text_dim=16)).encode_captions(
            Prepared([encoder.prepare("red")]), torch.tensor([1])
        )
