"""Every family: tokens are those of the library called by hand, and boxes lie where the patches are."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crossret.extraction import load_picture_encoder, load_text_encoder
from crossret.extraction.late_interaction import LateInteractionTexts
from tests.extraction.models import GRIDS, PICTURE_MODELS, edit_json, save_texts_model

PREFIX = {"clip": 1, "clip_vision_model": 1, "vit": 1, "dinov2": 1, "dinov2_with_registers": 4, "dinov3_vit": 3}
TEXTS = ["a red circle", "the small Blue square is left of a zebra"]


def by_hand(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoImageProcessor, AutoModel

    return AutoModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder, backend="pil")


@pytest.mark.parametrize("kind", [*GRIDS, "clip", "siglip"])
@torch.inference_mode()
def test_tokens_are_those_of_the_library(
    kind: str, folder_of: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    model, processor = by_hand(folder_of(kind))
    model = getattr(model, "vision_model", model)
    hidden = [model(**processor(picture, return_tensors="pt")).last_hidden_state[0] for picture in pictures]
    expected = [part.flatten(1).T if part.ndim == 3 else part[PREFIX.get(kind, 0) :] for part in hidden]
    encoder = load_picture_encoder(folder_of(kind))
    tokens = encoder.encode_images(pictures)
    assert tokens.lengths == [len(part) for part in expected]
    assert tokens.values.shape[1] == encoder.dim
    torch.testing.assert_close(tokens.values, torch.cat(expected), atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_naflex_tokens_are_the_librarys_without_padding(
    folder_of: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    model, processor = by_hand(folder_of("siglip2_vision_model"))
    inputs = processor(pictures, return_tensors="pt")
    hidden = model(**inputs).last_hidden_state
    encoder = load_picture_encoder(folder_of("siglip2_vision_model"))
    tokens = encoder.encode_images(pictures)
    mask = inputs["pixel_attention_mask"].bool()
    assert tokens.lengths == mask.sum(1).tolist()
    assert len(set(tokens.lengths)) > 1
    torch.testing.assert_close(tokens.values, hidden[mask], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in PICTURE_MODELS if kind != "resnet"])
@pytest.mark.parametrize("size", [(83, 121), (121, 83)], ids=["wide", "upright"])
@torch.inference_mode()
def test_boxes_lie_where_the_patches_are(kind: str, size: tuple[int, int], folder_of: Callable[[str], Path]) -> None:
    """Where a square is painted into a token's box, that token changes most."""
    encoder = load_picture_encoder(folder_of(kind))

    def encode(picture: np.ndarray) -> Any:
        return encoder.encode_images([Image.fromarray(picture)])

    grey = np.full((*size, 3), 128, np.uint8)
    plain = encode(grey)
    assert plain.boxes.shape == (len(plain.values), 4)
    assert (plain.boxes >= 0).all() and (plain.boxes[:, [2, 3]] <= torch.tensor([size[1], size[0]])).all()
    for place in (0, 2, len(plain.values) // 2 + 1, len(plain.values) - 1):
        x0, y0, x1, y1 = plain.boxes[place].tolist()
        painted = grey.copy()
        painted[round(y0) + 2 : round(y1) - 2, round(x0) + 2 : round(x1) - 2] = (255, 0, 0)
        changed = (encode(painted).values - plain.values).norm(dim=1)
        assert changed.argmax() == place, (changed, plain.boxes[place])


@torch.inference_mode()
def test_boxes_of_a_resnet_are_those_of_a_swin_of_its_stride(
    folder_of: Callable[[str], Path], pictures: list[Image.Image]
) -> None:
    """What its cells see goes far beyond their boxes, so that without training a neighbour may change more."""
    made = [load_picture_encoder(folder_of(kind)).encode_images(pictures) for kind in ("resnet", "swin")]
    assert made[0].lengths == made[1].lengths and made[0].boxes.equal(made[1].boxes)


@torch.inference_mode()
def test_tokens_of_padding_alone_are_left_out(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folder_of("clip_vision_model"), tmp_path / "padding")
    edit_json(folder / "preprocessor_config.json", size={"shortest_edge": 16})  # and then a crop of 32 x 32
    encoder = load_picture_encoder(folder)
    tokens = encoder.encode_images([Image.new("RGB", (80, 40))])
    assert tokens.lengths == [8]  # of 4 x 4, as 2 rows are black
    assert tokens.boxes is not None
    assert tokens.boxes[[0, -1]].tolist() == [[0, 0, 20, 20], [60, 20, 80, 40]]


@pytest.mark.parametrize("kind", ["clip", "siglip", "bert"])
@torch.inference_mode()
def test_tokens_of_texts_are_the_librarys_without_what_the_tokenizer_adds(
    kind: str, folder_of: Callable[[str], Path]
) -> None:
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder_of(kind)).eval(), AutoTokenizer.from_pretrained(folder_of(kind))
    first = 0 if kind == "siglip" else 1
    expected = []
    for text in TEXTS:
        if kind == "siglip":  # as it was trained: padded to its longest, and no mask
            inputs = tokenizer(text, padding="max_length", max_length=20, return_tensors="pt")
            hidden = model.text_model(input_ids=inputs["input_ids"]).last_hidden_state[0]
        else:
            inputs = tokenizer(text, return_tensors="pt")
            inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            hidden = getattr(model, "text_model", model)(**inputs).last_hidden_state[0]
        expected.append(hidden[first : first + len(text.split())])
    tokens = load_text_encoder(folder_of(kind)).encode_texts(TEXTS)
    assert tokens.lengths == [3, 9]
    torch.testing.assert_close(tokens.values, torch.cat(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "first", "longest"), [("roberta", 1, 9), ("t5", 0, 19)])
@torch.inference_mode()
def test_other_encoders_of_texts(kind: str, first: int, longest: int, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = save_texts_model(kind, tmp_path)
    model: Any = AutoModel.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    model = model.get_encoder() if kind == "t5" else model
    hidden = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state[0]
    encoder = load_text_encoder(folder)
    tokens = encoder.encode_texts([TEXTS[0], "a red circle " * 50])
    assert tokens.lengths == [3, longest]
    torch.testing.assert_close(tokens.values[:3], hidden[first : first + 3], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_texts_that_are_too_long_or_of_nothing(folder_of: Callable[[str], Path]) -> None:
    encoder = load_text_encoder(folder_of("bert"))
    assert encoder.encode_texts(["a red circle " * 50]).lengths == [18]
    with pytest.raises(ValueError, match="bert: its tokenizer makes nothing of the text ' '"):
        encoder.encode_texts(["a circle", " "])


def changed(source: Path, directory: Path, file: str, **values: Any) -> Path:
    folder = shutil.copytree(source, directory / "changed")
    edit_json(folder / file, **values)
    return folder


def test_what_is_no_encoder_is_named(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    bert = folder_of("bert")
    with pytest.raises(ValueError, match=r"bert: model_type 'bert' is no encoder of pictures that is known: clip, "):
        load_picture_encoder(bert)
    with pytest.raises(ValueError, match="vit: cannot be loaded"):  # there is no tokenizer
        load_text_encoder(folder_of("vit"))
    with pytest.raises(ValueError, match="no-such-model: cannot be loaded"):
        load_picture_encoder("no-such-model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: is no folder with config\.json"):
        load_picture_encoder(tmp_path / "empty")


def test_code_of_a_model_is_not_run(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    own = {"model_type": "of_its_own", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    folder = changed(folder_of("bert"), tmp_path, "config.json", **own)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    with pytest.raises(ValueError, match="changed: cannot be loaded"):
        load_text_encoder(folder)
    assert not (tmp_path / "run").exists()


LEVIT = {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 32}}
LARGER = {"size": {"height": 40, "width": 40}}


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"num_hidden_layers": 3}, r"changed: its weights have no \S*layers?\.2\.\S+ and \d+ more"),
        ("preprocessor_config.json", LEVIT, "its pictures are prepared by LevitImageProcessorPil, and where it puts"),
        ("preprocessor_config.json", LARGER, r"changed: Input image size \(40\*40\) doesn't match model"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    folder_of: Callable[[str], Path], tmp_path: Path, file: str, values: dict[str, Any], message: str
) -> None:
    folder = changed(folder_of("vit"), tmp_path, file, **values)
    with pytest.raises(ValueError, match=message):
        load_picture_encoder(folder).encode_images([Image.new("RGB", (40, 40))])


def test_pictures_that_are_too_long_are_refused(folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="1 x 101 pixels: one side is more than 100 times as long as the other"):
        load_picture_encoder(folder_of("dinov2")).prepare(Image.new("RGB", (1, 101)))


def test_what_needs_torchvision_says_so(
    folder_of: Callable[[str], Path], tmp_path: Path, pictures: list[Image.Image]
) -> None:
    own = {"image_processor_type": "DINOv3ViTImageProcessor", "size": {"height": 32, "width": 32}}
    folder = changed(folder_of("dinov3_vit"), tmp_path, "preprocessor_config.json", **own)
    if importlib.util.find_spec("torchvision") is None:
        with pytest.raises(ValueError, match=r"changed: cannot be loaded \(its image processor needs torchvision"):
            load_picture_encoder(folder)
        return
    from transformers import AutoImageProcessor, AutoModel

    inputs = AutoImageProcessor.from_pretrained(folder)(pictures, return_tensors="pt")
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[:, 3:]
        encoder = load_picture_encoder(folder)
        tokens = encoder.encode_images(pictures)
    torch.testing.assert_close(tokens.values, expected.flatten(0, 1), atol=1e-5, rtol=1e-4)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs transformers; install the extra: pip install 'crossret\[encoders\]'"):
        load_picture_encoder("google/siglip2-base-patch16-naflex")
    with pytest.raises(ValueError, match=r"timm:resnet18, a model of timm, needs timm; .*'crossret\[timm\]'"):
        load_picture_encoder("timm:resnet18")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "accelerate" else True)
    with pytest.raises(ValueError, match=r"needs accelerate; .*'crossret\[sentence-transformers\]'"):
        LateInteractionTexts("vidore/colpali-v1.3-hf")


@torch.inference_mode()
def test_siglips_own_tokenizer(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Its token for padding is the one that ends a text."""
    sentencepiece: Any = pytest.importorskip("sentencepiece", reason="make encoders has it")
    from transformers import SiglipTokenizer

    (tmp_path / "text").write_text("\n".join([*TEXTS, "two dogs run on the beach"] * 50))
    options = {"vocab_size": 30, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "pieces"), minloglevel=2, **options
    )
    folder = tmp_path / "siglip"
    shutil.copytree(folder_of("siglip"), folder, ignore=shutil.ignore_patterns("tokenizer*", "special_tokens*"))
    SiglipTokenizer(str(tmp_path / "pieces.model"), model_max_length=20).save_pretrained(folder)
    encoder = load_text_encoder(folder)
    pieces = [encoder.tokenizer.tokenize(text) for text in TEXTS]  # type: ignore[attr-defined]
    assert encoder.encode_texts(TEXTS).lengths == [min(len(own), 19) for own in pieces]
