"""The examples that need no training framework run, at a smaller size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from crossret import Scan, cli, save_model
from crossret.data import PrecomputedDataset, Vocabulary, render_scenes
from crossret.models import ScanConfig
from examples import own_loop, search_service

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 <= own_loop.main(train_scenes=20, epochs=2) <= 100
    assert capsys.readouterr().out.count("loss") == 2


def test_search_service(tmp_path: Path) -> None:
    scenes, run, embeddings = tmp_path / "scenes", tmp_path / "run", tmp_path / "embeddings"
    render_scenes(scenes, train=1, dev=1, test=8, workers=1)
    (scenes / "test_ids.txt").write_text("".join(f"photo-{number}\n" for number in range(8)))
    data = PrecomputedDataset(scenes, "test")
    words = Vocabulary.build(data.captions, min_count=1)
    config = ScanConfig(image_dim=data.image_dim, vocabulary_size=len(words), embed_dim=8, word_dim=4)
    save_model(Scan(config), run, words)
    with pytest.raises(SystemExit):
        cli.main(["encode", str(run), str(scenes), "--split", "test", "--output", str(embeddings)])
    client = TestClient(search_service.service(run, embeddings, scenes / "test_ids.txt"))
    found = client.get("/search", params={"caption": data.captions[0], "k": 3}).json()
    assert len(found) == 3
    assert [entry["score"] for entry in found] == sorted((entry["score"] for entry in found), reverse=True)
    assert {entry["image"] for entry in found} <= {f"photo-{number}" for number in range(8)}
    assert client.get("/search", params={"caption": ""}).status_code == 422
    assert client.get("/search", params={"caption": "a", "k": 1000}).status_code == 422


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells, in order, of fewer scenes and epochs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((ROOT / "examples" / "attention.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"]).replace("train=400", "train=20").replace("epochs=8", "epochs=1")
            exec(compile(text, "attention.ipynb", "exec"), namespace)
    assert (tmp_path / "attention.png").stat().st_size > 10_000
