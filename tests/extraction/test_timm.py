"""Backbones of timm, of which `make encoders` has an environment: timm imports torchvision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("torchvision", reason="timm imports torchvision; make encoders has both")
timm: Any = pytest.importorskip("timm", reason="make encoders has it")

from crossret.data import Vocabulary  # noqa: E402
from crossret.data.prepared import Prepared  # noqa: E402
from crossret.extraction import PictureEncoder, load_picture_encoder  # noqa: E402
from crossret.hyperparameters import ScanConfig  # noqa: E402
from crossret.models import Scan, load_model  # noqa: E402
from crossret.models.checkpoints import save_model  # noqa: E402

MODELS = {
    "test_vit": {},  # a class token
    "test_vit3": {},
    "test_resnet": {},
    "test_convnext": {},
    "vit_small_patch16_dinov3": {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64},
    "swin_tiny_patch4_window7_224": {"embed_dim": 12, "depths": (1, 1), "num_heads": (1, 2), "img_size": 56},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory, found = tmp_path_factory.mktemp("timm"), {}
    for name in MODELS:
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, **MODELS[name])
        timm.models.save_for_hf(model, str(directory / name), safe_serialization=True, model_args=MODELS[name] or None)
        found[name] = directory / name
    return found


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_tokens_are_those_of_the_library(name: str, folders: dict[str, Path], pictures: list[Image.Image]) -> None:
    encoder = load_picture_encoder(folders[name])
    model = timm.create_model(f"local-dir:{folders[name]}", pretrained=True, num_classes=0).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    pixels = torch.stack([transform(picture) for picture in pictures])
    maps = model.forward_intermediates(pixels, indices=1, norm=True, intermediates_only=True)[-1]
    tokens = encoder.encode_images(pictures)
    assert tokens.lengths == [maps.shape[2] * maps.shape[3]] * 3
    torch.testing.assert_close(tokens.values, maps.flatten(2).mT.flatten(0, 1), atol=1e-5, rtol=1e-4)


def with_crop(folder: Path, directory: Path, mode: str, share: float) -> PictureEncoder[Any]:
    shutil.copytree(folder, directory)
    config = json.loads((directory / "config.json").read_text())
    config["pretrained_cfg"] |= {"crop_mode": mode, "crop_pct": share}
    (directory / "config.json").write_text(json.dumps(config))
    return load_picture_encoder(directory)


@pytest.mark.parametrize(("mode", "share"), [("center", 0.875), ("squash", 0.9), ("border", 1.0), ("border", 0.9)])
@pytest.mark.parametrize("size", [(183, 321), (321, 183)], ids=["wide", "upright"])
@torch.inference_mode()
def test_boxes_lie_where_the_patches_are(
    mode: str, share: float, size: tuple[int, int], folders: dict[str, Path], tmp_path: Path
) -> None:
    encoder = with_crop(folders["test_vit"], tmp_path / "model", mode, share)

    def pixels(picture: np.ndarray) -> Any:
        return encoder.prepare(Image.fromarray(picture))

    grey = np.full((*size, 3), 128, np.uint8)
    plain = encoder.encode([pixels(grey)])
    assert plain.boxes is not None
    everything = encoder.encode([pixels(np.zeros((160, 160, 3), np.uint8))])
    assert (len(plain.values) < len(everything.values)) == (mode == "border")
    rows = round(len(everything.values) ** 0.5)
    side = pixels(grey).values.shape[1] // rows
    whole = (plain.boxes[:, 2:] - plain.boxes[:, :2]).amin(1) > 8  # the picture may end within a cell
    for place in whole.nonzero().flatten().tolist()[:: len(plain.values) // 3]:
        x0, y0, x1, y1 = plain.boxes[place].tolist()
        painted = grey.copy()
        painted[round(y0) + 3 : round(y1) - 3, round(x0) + 3 : round(x1) - 3] = (255, 0, 0)
        changed = (pixels(painted).values - pixels(grey).values).abs().sum(0)
        cells = changed.unfold(0, side, side).unfold(1, side, side).sum((2, 3)).flatten()
        # A box is at the place of its patch among those that hold any of the picture.
        inside = pixels(grey).placement.boxes(rows, rows, side, side)[1]
        assert cells[inside].argmax() == place
        assert cells[inside][place] > 0.9 * cells.sum()


def test_what_timm_has_no_weights_of_is_refused() -> None:
    with pytest.raises(ValueError, match=r"timm:test_vit: timm has no weights of it|timm:test_vit: cannot be loaded"):
        load_picture_encoder("timm:test_vit")
    with pytest.raises(ValueError, match="timm:no_such_model: cannot be loaded"):
        load_picture_encoder("timm:no_such_model")


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "swin_tiny_patch4_window7_224"])
def test_a_model_learns_through_it_and_holds_it(
    name: str, folders: dict[str, Path], pictures: list[Image.Image], tmp_path: Path
) -> None:
    encoder = load_picture_encoder(folders[name])
    model = Scan(ScanConfig(image_dim=encoder.dim, vocabulary_size=5, embed_dim=8, word_dim=8))
    model.read_pictures_by(encoder)
    prepared = Prepared([encoder.prepare(picture) for picture in pictures])
    tokens, lengths = torch.tensor([[1, 4, 2]] * 3), torch.tensor([3] * 3)
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            encoder.checkpoint_gradients()
        model.zero_grad()
        images, captions = model.encode_images(prepared), model.encode_captions(tokens, lengths)
        model.score(images, captions).diagonal().sum().backward()
        gradients.append({each: weight.grad for each, weight in model.named_parameters() if weight.grad is not None})
    assert sum(each.startswith("encoder.") for each in gradients[0]) > 10
    torch.testing.assert_close(gradients[1], gradients[0])
    save_model(model, tmp_path / "saved", Vocabulary(["word"]))
    loaded, _ = load_model(tmp_path / "saved")
    model.eval()
    with torch.no_grad():
        own = loaded.encode_images(Prepared([loaded.encoder.reader.prepare(picture) for picture in pictures]))
        torch.testing.assert_close(own.sequences, model.encode_images(prepared).sequences)
