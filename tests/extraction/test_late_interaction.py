"""Models of late interaction: vectors are those of sentence-transformers by hand, and boxes lie where they do."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

pytest.importorskip("sentence_transformers", reason="models of late interaction are those of sentence-transformers")

import crossret as library
from crossret.data.pictures import read_picture
from crossret.extraction import load_picture_encoder, load_text_encoder
from crossret.extraction.late_interaction import LateInteractionTexts
from crossret.extraction.resuming import identity
from crossret.extraction.tiles import tiles_of
from crossret.files.json import read_json_lines
from tests.cli.command import Cli
from tests.explain.test_page import data_of
from tests.extraction.late_models import DIM, save_late_model
from tests.extraction.models import edit_json

TEXTS = ["a red circle", "the small Blue square is left of a triangle and above the circle"]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model by its kind, made when it is first asked for."""
    directory = tmp_path_factory.mktemp("late")

    def folder(kind: str) -> Path:
        return directory / kind if (directory / kind).exists() else save_late_model(kind, directory)

    return folder


def by_hand(folder: Path) -> Any:
    """As the library has it; pictures are prepared by Pillow where torchvision is there, too."""
    from sentence_transformers import MultiVectorEncoder

    backend = {"backend": "pil"}
    return MultiVectorEncoder(str(folder), device="cpu", local_files_only=True, processor_kwargs=backend)


@pytest.mark.parametrize(
    ("kind", "task"),
    [*((kind, "query") for kind in ("colbert", "pylate", "colpali", "colqwen")),
     ("colbert", "document"), ("pylate", "document")],
)  # fmt: skip
@torch.inference_mode()
def test_texts_are_encoded_as_the_library_does(
    kind: str, task: Literal["query", "document"], late: Callable[[str], Path]
) -> None:
    """Captions are queries."""
    model, queries = by_hand(late(kind)), load_text_encoder(late(kind))
    expected = (model.encode_query if task == "query" else model.encode_document)(TEXTS)
    encoder = queries if task == "query" else LateInteractionTexts(str(late(kind)), task)
    tokens = encoder.encode_texts(TEXTS)
    assert tokens.values.shape[1] == encoder.dim == DIM
    assert tokens.lengths == [len(part) for part in expected]
    torch.testing.assert_close(tokens.values, torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert task == "query" or identity(queries) != identity(encoder)


@torch.inference_mode()
def test_what_vectors_are_of_is_spelled(late: Callable[[str], Path]) -> None:
    """With the prompt and what expands a query, and without what the mask leaves out of a document, as "of"."""
    query, document = (LateInteractionTexts(str(late("colbert")), task) for task in ("query", "document"))  # type: ignore[arg-type]
    tokens, spelled = query.encode_and_spell(TEXTS[:1])
    assert spelled == [["[CLS]", "red", "a", "red", "circle", "[SEP]"] + 6 * ["[UNK]"]]
    assert torch.equal(tokens.values, query.encode_texts(TEXTS[:1]).values)
    _, spelled = document.encode_and_spell(["left of a circle", "a circle"])
    assert spelled == [["[CLS]", "blue", *words, "[SEP]"] for words in (["left", "a", "circle"], ["a", "circle"])]


@pytest.mark.parametrize("kind", ["colpali", "colqwen"])
@torch.inference_mode()
def test_pictures_are_documents_without_the_words_of_the_prompt(
    kind: str, late: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    model = by_hand(late(kind))
    model[1].keep_only_token_ids = [model.tokenizer.convert_tokens_to_ids(model.processor.image_token)]
    expected = model.encode_document(pictures)
    encoder = load_picture_encoder(late(kind))
    tokens = encoder.encode_images(pictures)
    assert tokens.values.shape[1] == encoder.dim == DIM
    assert tokens.lengths == [len(part) for part in expected]
    assert (len(set(tokens.lengths)) > 1) == (kind == "colqwen")
    torch.testing.assert_close(tokens.values, torch.cat(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["colpali", "colqwen", "tiles"])
@pytest.mark.parametrize("size", [(83, 121), (121, 83)], ids=["wide", "upright"])
@torch.inference_mode()
def test_boxes_lie_where_the_patches_are(kind: str, size: tuple[int, int], late: Callable[[str], Path]) -> None:
    """Where a square is painted into a token's box, that token changes most, and of tiles that of the whole, too."""
    encoder = load_picture_encoder(late(kind))

    def encode(picture: np.ndarray) -> Any:
        return encoder.encode_images([Image.fromarray(picture)])

    grey = np.full((*size, 3), 128, np.uint8)
    plain = encode(grey)
    assert plain.boxes[-1, 2:].tolist() == [size[1], size[0]]
    # In a tile of four vectors these see much of each other, and a strong colour changes all.
    colour = (150, 128, 128) if kind == "tiles" else (255, 0, 0)
    fine = len(plain.values) - (4 if kind == "tiles" else 0)  # behind them those of the whole picture
    for place in (0, 2, 6, fine // 2 + 1, fine - 1):
        x0, y0, x1, y1 = plain.boxes[place].tolist()
        painted = grey.copy()
        painted[round(y0) + 2 : round(y1) - 2, round(x0) + 2 : round(x1) - 2] = colour
        changed = (encode(painted).values - plain.values).norm(dim=1)
        assert changed[:fine].argmax() == place, (changed, plain.boxes[place])
        if kind == "tiles":
            coarse = plain.boxes[fine + int(changed[fine:].argmax())]
            assert (coarse[:2] <= plain.boxes[place, :2]).all() and (plain.boxes[place, 2:] <= coarse[2:]).all()


def test_gradients_reach_the_weights(late: Callable[[str], Path], pictures: list[Image.Image]) -> None:
    encoder = load_picture_encoder(late("colqwen"))
    encoder.encode_images(pictures).values[:, 0].sum().backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in encoder.module.parameters())


def test_pictures_have_the_tiles_that_their_processor_makes() -> None:
    import transformers as hf

    for longest, side in ((64, 32), (100, 30), (30, 30), (20, 30)):
        processor = hf.Idefics3ImageProcessorPil(size={"longest_edge": longest}, max_image_size={"longest_edge": side})
        for width, height in ((83, 121), (121, 83), (40, 40), (200, 9), (20, 5), (5, 20), (100, 67), (67, 100)):
            made = processor(Image.new("RGB", (width, height)), return_row_col_info=True)
            assert tiles_of(processor, width, height) == (made["rows"][0][0], made["cols"][0][0])
    processor.do_image_splitting = False
    assert tiles_of(processor, 83, 121) == (0, 0)


def test_what_reads_no_pictures_or_cuts_them_otherwise_is_refused(late: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="colbert: reads no pictures, only text"):
        load_picture_encoder(late("colbert"))
    folder = shutil.copytree(late("tiles"), tmp_path / "changed")
    settings = folder / "processor_config.json"
    settings.write_text(settings.read_text().replace('"do_resize": true', '"do_resize": false'))
    with pytest.raises(
        ValueError, match=r"changed: .*ImageProcessorPil cuts pictures into tiles, and where its vectors"
    ):
        load_picture_encoder(folder)


def test_code_of_a_model_is_not_run(late: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(late("colbert"), tmp_path / "changed")
    (folder / "code.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    modules = folder / "modules.json"
    modules.write_text(modules.read_text().replace("sentence_transformers.base.modules.dense.Dense", "code.Dense"))
    assert "code.Dense" in modules.read_text()
    with pytest.raises(ValueError, match="changed: cannot be loaded"):
        load_text_encoder(folder)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "missing"), [("colbert", "embeddings.LayerNorm.bias"), ("colqwen", "language_model.norm.weight")]
)
def test_weights_that_are_not_there_are_named(
    kind: str, missing: str, late: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(late(kind), tmp_path / "changed")
    weights = load_file(folder / "model.safetensors")
    (stored,) = (name for name in weights if name.replace(".model.", ".").endswith(missing))
    del weights[stored]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"changed: its weights have no \S*{missing}$"):
        load_text_encoder(folder)


def test_prompts_tell_models_apart(late: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(late("colbert"), tmp_path / "changed")
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "green ", "document": "blue "})
    assert identity(load_text_encoder(folder)) != identity(load_text_encoder(late("colbert")))


def test_the_extra_is_named(late: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = late("colbert")
    found = importlib.util.find_spec
    missing = "sentence_transformers"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ValueError, match=r"needs sentence_transformers; .*'crossret\[sentence-transformers\]'"):
        load_text_encoder(folder)


def test_an_index_without_a_model(late: Callable[[str], Path], tmp_path: Path, crossret: Cli) -> None:
    """Pictures are added and removed, and found by MaxSim with queries as the encoder reads them."""
    album, index = tmp_path / "album", tmp_path / "index"
    album.mkdir()
    generator = np.random.default_rng(0)
    for number in range(4):
        pixels = generator.integers(0, 255, (60, 60 + 30 * number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(album / f"{number}.png")
    assert crossret("index", album, "--encoder", late("colqwen"), "--output", index) == 0, crossret.err
    (album / "1.png").unlink()
    assert crossret("index", album, "--output", index) == 0, crossret.err
    assert crossret.out == f"{index}: 3 pictures: 3 unchanged, 1 gone\n"

    lines, html = tmp_path / "found.jsonl", tmp_path / "why.html"
    arguments = ("search", index, *TEXTS, "-k", "3", "--output", lines, "--html", html)
    assert crossret(*arguments) == 0, crossret.err
    pictures, texts = load_picture_encoder(late("colqwen")), load_text_encoder(late("colqwen"))
    with torch.inference_mode():
        wanted = texts.encode_texts(TEXTS)
        files = sorted(album.iterdir())
        rows = [pictures.encode_images([read_picture(file)]).values for file in files]
    opened = library.load_index(index)
    found = opened.search(TEXTS, k=3)
    for number, (query, row) in enumerate(
        zip(wanted.values.split(wanted.lengths), read_json_lines(lines), strict=True)
    ):
        truth = {str(file): float((query @ own.T).amax(1).sum()) for file, own in zip(files, rows, strict=True)}
        scores = {one["picture"]: one["score"] for one in row["results"]}
        assert scores == pytest.approx(truth, rel=1e-4)
        assert [str(opened.pictures[place]) for place in found.indices[number].tolist()] == [*scores]
        pairs = data_of(html)["pairs"][3 * number : 3 * number + 3]
        assert [pair["score"] for pair in pairs] == pytest.approx([*scores.values()], rel=1e-4)
        for pair, file in zip(pairs, scores, strict=True):
            with Image.open(file) as picture:
                assert pair["size"] == [*picture.size]
            assert len(pair["words"]) == wanted.lengths[number] and pair["caption"] == TEXTS[number]
            assert sum(pair["shares"][0]["values"]) == pytest.approx(pair["score"], rel=1e-6)
    err = crossret.refused("index", album, "--encoder", late("colbert"), "--output", index)
    assert "reads no pictures" in err
