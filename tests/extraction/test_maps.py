"""Feature maps of modules that other packages make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from crossret.extraction import MapEncoder, load_picture_encoder

PACKAGE = """
import torch
from torch import nn
from crossret.extraction import MapEncoder

def network():
    torch.manual_seed(0)
    return nn.Conv2d(3, 5, 16, stride=16).eval()

def encoder():
    made = network()
    return MapEncoder("a network", made, made, (32, 48))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "networks_of_others.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    return "networks_of_others"


def test_tokens_are_the_maps_cells(package: str) -> None:
    encoder = load_picture_encoder(f"{package}:encoder")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8))
    tokens = encoder.encode_images([picture, picture.resize((96, 96))])
    pixels = torch.from_numpy(np.array(picture)).double() / 255
    pixels = (pixels - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    cells = encoder.module.double()(pixels.movedim(2, 0)[None])[0]
    assert (encoder.dim, tokens.lengths) == (5, [6, 6])
    torch.testing.assert_close(tokens.values[:6].double(), cells.flatten(1).T, rtol=1e-4, atol=1e-5)
    assert tokens.boxes is not None
    assert tokens.boxes[[0, 4]].tolist() == [[0, 0, 16, 16], [16, 16, 32, 32]]
    assert tokens.boxes[[6, 10]].tolist() == [[0, 0, 32, 48], [32, 48, 64, 96]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.package:encoder", r"no.package:encoder: cannot be imported and called \(No module named 'no'"),
        ("{}:other", "{}:other: cannot be imported and called .*no attribute 'other'"),
        ("{}:network", r"{}:network: returns Conv2d, which is no crossret.extraction.PictureEncoder"),
    ],
)
def test_functions_that_make_none(package: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message.format(package)}"):
        load_picture_encoder(name.format(package))


def test_features_that_are_no_map() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten())
    with pytest.raises(
        ValueError, match=r"^mine: its features have shape \(1, 324\), expected \(n, D, rows, columns\)"
    ):
        MapEncoder("mine", network, network, (16, 16))
