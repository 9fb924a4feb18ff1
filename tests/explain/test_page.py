"""The page that explains: what it tells is what the model computes, and a browser shows it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.scenes.grounding import Grounding
from crossret.evaluation import encode_dataset, score_matrix
from crossret.explain.page.contents import Canvas, Page, Pair, Part, Result, Way
from crossret.explain.page.tokens import Document, late_interaction_page
from crossret.explain.page.writing import write_page
from crossret.explain.split import split_page
from crossret.models import Scan, ScanConfig
from crossret.retriever import Retriever
from tests.explain.chromium import PROGRAM, Tab, browser

REGIONS, IMAGES = 5, 4
SIZE = 64, 48
MARKUP = "a </script><img src=x onerror=boom()> &amp; “red” ball"
CAPTIONS = ["a red ball", MARKUP, "two blue boxes on a table", "red red red"]


def data_of(html: Path) -> dict[str, Any]:
    """What a page's script reads."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', html.read_text("utf-8"), re.DOTALL)
    assert text is not None
    found: dict[str, Any] = json.loads(text[1])
    return found


def unpacked(text: str, rows: int, low: float, high: float) -> NDArray[np.float64]:
    return low + np.frombuffer(base64.b64decode(text), "<u2").reshape(rows, -1) / 65535 * (high - low)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PrecomputedCorpus:
    """Four images of five regions with boxes and photographs, a caption each."""
    directory = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    np.save(directory / "test_ims.npy", random.standard_normal((IMAGES, REGIONS, 6)).astype(np.float32))
    corners = np.sort(random.uniform(0, 1, (IMAGES, REGIONS, 2, 2)), axis=2) * SIZE
    np.save(directory / "test_boxes.npy", corners.reshape(IMAGES, REGIONS, 4).astype(np.float32))
    (directory / "test_caps.txt").write_text("\n".join(CAPTIONS) + "\n", "utf-8")
    (directory / "test_ids.txt").write_text("".join(f"photo{number}\n" for number in range(IMAGES)))
    (directory / "photographs").mkdir()
    for number in range(IMAGES):
        pixels = random.integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(directory / "photographs" / f"photo{number}.jpg")
    data = PrecomputedDataset(directory, "test")
    return PrecomputedCorpus(data, Vocabulary.build(data.captions))


@pytest.fixture(scope="module")
def model(corpus: PrecomputedCorpus) -> Scan:
    torch.manual_seed(0)
    sizes = {"image_dim": 6, "vocabulary_size": len(corpus.vocabulary), "embed_dim": 8, "word_dim": 4}
    return Scan(ScanConfig(**sizes, cross_attention="ensemble"))


@pytest.fixture(scope="module")
def html(model: Scan, corpus: PrecomputedCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    photographs = Path(corpus.data.name).parent / "photographs"
    truth = [Grounding(caption.split(), {1: np.array([1, 2, 9, 9], np.float32)}) for caption in CAPTIONS]
    write_page(split_page(model, corpus, [0, 1, 2], name="test", photographs=photographs, grounding=truth), path)
    return path


def test_weights_scores_and_results_are_the_models(model: Scan, corpus: PrecomputedCorpus, html: Path) -> None:
    page = data_of(html)
    images, captions = encode_dataset(model, corpus)
    scores = score_matrix(model, images, captions)
    firsts = scores.argmax(0)
    wanted = [(image, caption) for caption in range(3) for image in dict.fromkeys([caption, int(firsts[caption])])]
    assert [pair["caption"] for pair in page["pairs"]] == [CAPTIONS[caption] for _, caption in wanted]
    for pair, (image, caption) in zip(page["pairs"], wanted, strict=True):
        one, other = images[image : image + 1], captions[caption : caption + 1]
        words = len(pair["words"])
        assert words == captions.lengths[caption] and pair["words"][0] == "<start>" and pair["words"][-1] == "<end>"
        for way, attention in zip(pair["ways"], model.attention(one, other), strict=True):
            scale = page["scales"][way["name"]]
            told = unpacked(way["weights"], way["rows"], scale["low"], scale["high"])
            np.testing.assert_allclose(told, attention.weights[0, :words].numpy(), atol=1e-4)
            assert attention.relevances is not None
            np.testing.assert_allclose(way["cosines"], attention.relevances[0, :words].numpy(), atol=1e-4)
        total = sum(sum(share["values"]) for share in pair["shares"])
        assert np.float32(total) == np.float32(pair["score"])
        np.testing.assert_allclose(pair["score"], scores[image, caption], rtol=1e-5)
        assert [len(share["values"]) for share in pair["shares"]] == [words, REGIONS]
        boxes = unpacked(pair["boxes"], REGIONS, 0, 1) * np.tile(SIZE, 2)
        assert corpus.data.boxes is not None
        np.testing.assert_allclose(boxes, corpus.data.boxes[image], atol=0.01)
        found, texts = pair["found"]
        order = np.argsort(-scores[:, caption], kind="stable")
        assert [result["name"] for result in found["results"]] == [f"photo{place}" for place in order]
        assert [result["right"] for result in found["results"]] == [place == caption for place in order]
        assert [result["text"] for result in texts["results"]] == [
            CAPTIONS[place] for place in np.argsort(-scores[image], kind="stable")
        ]
        rank = int((order == caption).argmax()) + 1
        assert pair["mark"] == (f"rank {rank}" if image == caption else "found first")
        assert pair["right"] == (image == caption and rank == 1)
        assert ("objects" in pair) == (image == caption)
    linked = [result.get("pair") for result in page["pairs"][0]["found"][0]["results"]]
    assert sorted(number for number in linked if number is not None) == [
        number for number, (_, caption) in enumerate(wanted) if caption == 0
    ]


def test_an_explanation_is_a_page_with_a_picture_or_without(
    model: Scan, corpus: PrecomputedCorpus, tmp_path: Path
) -> None:
    retriever = Retriever(model, corpus.vocabulary)
    features = torch.tensor(np.array(corpus.data.features[0]))
    retriever.explain(features, "a red ball").html(tmp_path / "alone.html")
    (pair,) = data_of(tmp_path / "alone.html")["pairs"]
    assert pair["numbered"] and pair["picture"] is None and pair["regions"] == REGIONS
    shown = retriever.explain(features, "a red ball")._repr_html_()  # of a notebook
    assert unescape(shown.split('srcdoc="')[1].split('"')[0]) == (tmp_path / "alone.html").read_text("utf-8")
    picture = Path(corpus.data.name).parent / "photographs" / "photo0.jpg"
    with pytest.raises(ValueError, match="boxes: 5 regions are no square grid"):
        retriever.explain(features, "a red ball").html(tmp_path / "grid.html", picture)
    assert not (tmp_path / "grid.html").exists()
    retriever.explain(features[:4], "a red ball").html(tmp_path / "grid.html", picture)
    (pair,) = data_of(tmp_path / "grid.html")["pairs"]
    assert unpacked(pair["boxes"], 4, 0, 1)[3].round(3).tolist() == [0.5, 0.5, 1, 1]


def test_what_an_explanation_is_given_is_checked(model: Scan, corpus: PrecomputedCorpus, tmp_path: Path) -> None:
    retriever = Retriever(model, corpus.vocabulary)
    features = torch.tensor(np.array(corpus.data.features[0]))
    # Encoded beside an image of more regions it is what it is alone.
    encoded = retriever.encode_images([features[:3], features])
    beside, alone = retriever.explain(encoded[:1], "red"), retriever.explain(features[:3], "red")
    for one, other in zip(beside.maps, alone.maps, strict=True):
        torch.testing.assert_close(one.weights, other.weights)
    picture = Path(corpus.data.name).parent / "photographs" / "photo0.jpg"
    boxes = np.tile(np.float32([100, 100, 120, 120]), (REGIONS, 1))
    with pytest.raises(ValueError, match=r"photo0.jpg: has 64 x 48 pixels, and most boxes lie outside of it"):
        retriever.explain(features, "red", boxes=boxes).html(tmp_path / "page.html", picture)
    with pytest.raises(ValueError, match=r"boxes: that of region 4 is 100, 100, 20, 20: not x0, y0, x1, y1"):
        boxes[4] = 100, 100, 20, 20
        retriever.explain(features, "red", boxes=boxes)
    with pytest.raises(ValueError, match=r"boxes must have shape \(R, 4\)"):
        retriever.explain(features, "red", boxes=boxes[0])
    with pytest.raises(TypeError, match="caption: expected a text, not list"):
        retriever.explain(features, ["red"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the score of 'red' with the image is nan: are all features finite"):
        retriever.explain(features * torch.nan, "red")


def test_late_interaction_shows_similarities_that_add_up(tmp_path: Path) -> None:
    torch.manual_seed(0)
    query, text = torch.randn(3, 8), torch.randn(5, 8)
    text[:3] += 2 * query
    documents = [Document(torch.randn(4, 8), "x"), Document(text, "text", tokens=["the", "red", "ball", "is", "round"])]
    made = late_interaction_page("a red ball", ["a", "red", "ball"], query, documents, normalize=True)
    write_page(made, tmp_path / "page.html")
    page = data_of(tmp_path / "page.html")
    first = page["pairs"][0]
    scale = page["scales"]["similarity"]
    told = unpacked(first["ways"][0]["weights"], 3, scale["low"], scale["high"])
    cosines = torch.cosine_similarity(query[:, None], text[None], dim=2)
    np.testing.assert_allclose(told, cosines.numpy(), atol=1e-4)
    assert first["score"] == pytest.approx(float(cosines.max(1).values.sum()), rel=1e-5)
    assert np.float32(sum(first["shares"][0]["values"])) == np.float32(first["score"])
    # Best first, whatever the order given.
    results = first["found"][0]["results"]
    assert [(result["name"], result["pair"]) for result in results] == [("text", 0), ("x", 1)]
    assert first["tokens"] == ["the", "red", "ball", "is", "round"] and page["pairs"][1]["numbered"]
    with pytest.raises(ValueError, match="documents: there are none"):
        late_interaction_page("a", ["a"], query[:1], [])
    with pytest.raises(ValueError, match=r"documents\[0\]: 4 tokens, but 5 vectors"):
        late_interaction_page("a", ["a"], query[:1], [Document(text, "text", tokens=list("abcd"))])


def test_two_hundred_pairs_weigh_less_than_ten_megabytes(tmp_path: Path) -> None:
    """Of photographs that are as hard to compress as any: a third of their light is noise."""
    random = np.random.default_rng(0)
    smooth = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((480, 360), 3)
    pixels = np.asarray(smooth) * 0.7 + random.integers(0, 77, (360, 480, 3))
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "0.jpg", quality=95)
    boxes = random.uniform(0, 300, (100, 4)).astype(np.float32)
    ways = tuple(Way(name, name, random.dirichlet(np.ones(100), 20).astype(np.float32)) for name in ("t2i", "i2t"))
    pairs = []
    for number in range(200):
        picture = tmp_path / f"{number}.jpg"
        if number:
            shutil.copyfile(tmp_path / "0.jpg", picture)
        shares = random.standard_normal(120)
        parts = Part("words", "words", shares[:20]), Part("regions", "regions", shares[20:])
        found = {"Images": [Result(rank, 0.1, f"photo {rank}", picture=picture) for rank in range(5)]}
        document = Canvas(picture, (480, 360), boxes)
        pairs.append(Pair("a caption " * 10, ("word",) * 20, document, 0.5, ways, parts, found=found))
    write_page(Page("many", pairs), tmp_path / "many.html")
    assert (tmp_path / "many.html").stat().st_size < 10e6


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    if PROGRAM is None:
        pytest.skip("there is no Chromium")
    with browser() as opened:
        yield Tab(opened)


REGION = "document.querySelectorAll('#picture .region')[{}]"
WORD = "document.querySelectorAll('#words .chip')[{}]"


def status(tab: Tab) -> str:
    """What is said of what is chosen, without the marks that isolate words of another direction."""
    text: str = tab.evaluate("document.getElementById('status').textContent")
    return re.sub("[\u2068\u2069]", "", text)


def ten_thousandths(text: str) -> int:
    return round(1e4 * float(text.replace("−", "-")))


def lit(tab: Tab, of: str) -> list[float]:
    shades = f"[...document.querySelectorAll('{of}')].map((e) => Number(e.style.getPropertyValue('--lit') || 0))"
    found: list[float] = tab.evaluate(shades)
    return found


def choose(tab: Tab, control: str, value: int, event: str) -> None:
    tab.evaluate(
        f"(() => {{ const c = document.getElementById('{control}'); c.value = {value};"
        f" c.dispatchEvent(new Event('{event}')) }})()"
    )


def brightness(tab: Tab) -> list[tuple[float, int]]:
    """(x of the region, how bright it is, 0 to 255), darkest first: in the order in which they are painted."""
    cells = "[...document.querySelectorAll('#light rect')].map((e) => [e.getAttribute('x'), e.getAttribute('fill')])"
    return [(float(x), int(re.findall(r"\d+", fill)[0])) for x, fill in tab.evaluate(cells)]


def test_words_light_up_regions_in_a_browser(tab: Tab, html: Path, model: Scan, corpus: PrecomputedCorpus) -> None:
    tab.open(html)
    images, captions = encode_dataset(model, corpus)
    attention = model.attention(images[:1], captions[:1])[0]
    assert " looks most at region " in status(tab) and " · share " in status(tab)  # before anybody asks
    tab.hover(WORD.format(2))
    strongest = int(attention.strongest()[0, 2])
    assert tab.evaluate("document.querySelector('#picture .strongest').getAttribute('aria-label')") == (
        f"region {strongest + 1}"
    )
    weights = attention.weights[0, 2].numpy()
    assert attention.relevances is not None
    said = f"“red” looks most at region {strongest + 1}, weight {weights.max():.2f}"
    assert status(tab).startswith(f"{said} · cosine {attention.relevances[0, 2]:.2f}")
    share = tab.evaluate("document.querySelector('#shares li.active').lastChild.textContent")
    assert status(tab).endswith(f" · share {share}")
    assert corpus.data.boxes is not None
    at = {round(float(box[0]), 1): weight for box, weight in zip(corpus.data.boxes[0], weights, strict=True)}
    full = data_of(html)["scales"]["t2i"]["full"]
    painted = brightness(tab)
    assert painted == sorted(painted, key=lambda cell: cell[1])
    for x, grey in painted:
        assert grey == pytest.approx(255 * (at[round(x, 1)] / full) ** (1 / 2.2), abs=1)
    before = dict(painted)
    choose(tab, "brightness", 1, "input")
    assert f"{full / 2:.2f}" in tab.evaluate("document.getElementById('scale').textContent")
    assert all(grey > before[x] or before[x] in (0, 255) for x, grey in brightness(tab))
    # From a region to its words, whichever lies on top there.
    tab.hover(REGION.format(0))
    region = int(tab.evaluate("document.querySelector('#picture .active').getAttribute('aria-label')").split()[1]) - 1
    column = attention.weights[0, : int(captions.lengths[0]), region].numpy()
    shades = lit(tab, "#words .chip")
    assert int(np.argmax(shades)) == int(column.argmax()) and max(shades) > 0
    assert re.match(f"region {region + 1}: “.+” looks most at it, weight {column.max():.2f}", status(tab))
    # The other direction has other weights.
    choose(tab, "way", 1, "change")
    tab.hover(WORD.format(2))
    other = model.attention(images[:1], captions[:1])[1].weights[0, 2].numpy()
    assert status(tab).startswith(f"“red”: region {other.argmax() + 1} looks most at it, weight {other.max():.2f}")
    # All that is printed adds up as it is printed.
    number = "(e) => Math.round(1e4 * e.lastChild.textContent.replace('−', '-'))"
    lists = f"(list) => [...list.querySelectorAll('li')].map({number})"
    parts = tab.evaluate(f"[...document.querySelectorAll('#shares ul')].map({lists})")
    totals = tab.evaluate("[...document.querySelectorAll('#shares h3 ~ h3')].map((e) => e.textContent)")
    assert [sum(part) for part in parts] == [ten_thousandths(total.split(": ")[1]) for total in totals]
    score = tab.evaluate("document.querySelector('.sum strong').textContent")
    assert sum(map(sum, parts)) == ten_thousandths(score)
    # What is taken for markup would raise, or load something.
    tab.evaluate(
        "document.querySelectorAll('#list button')[document.querySelectorAll('#list .other').length ? 2 : 1].click()"
    )
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:image/jpeg"))] == []


def test_the_keyboard_and_a_screen_reader_reach_everything(tab: Tab, html: Path) -> None:
    tab.open(html)
    tab.evaluate("document.querySelector('#words .chip[tabindex=\"0\"]').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert status(tab).startswith("“red” looks most at")
    assert tab.evaluate("document.getElementById('said').textContent.includes('looks most at')")
    tab.press("Enter")
    tab.evaluate("document.activeElement.blur()")
    assert status(tab).startswith("“red” looks most at")  # kept
    assert tab.evaluate("document.querySelector('#words [aria-pressed=\"true\"]').textContent") == "red"
    tab.press("Escape")
    assert status(tab).startswith("Nothing is chosen")
    tab.evaluate("document.querySelector('#picture .region[tabindex=\"0\"]').focus()")
    tab.press("ArrowRight")
    assert status(tab).startswith("region 2: ")
    labels = tab.labels()
    for role, name in [
        *(("button", f"region {number}") for number in range(1, REGIONS + 1)),
        *(("button", word) for word in ("red", "ball")),
        ("toolbar", "Words of the caption"),
        ("toolbar", "Regions of the picture"),
        ("slider", "Brightness"),
        ("searchbox", "Find a caption"),
        ("navigation", "Pairs"),
    ]:
        assert (role, name) in labels


def test_a_text_is_highlighted_in_a_browser(tab: Tab, tmp_path: Path) -> None:
    vectors = torch.eye(4)
    documents = [Document(vectors, "text", tokens=["the", "red", "ball", "rolls"])]
    write_page(late_interaction_page("red ball", ["red", "ball"], vectors[1:3], documents), tmp_path / "text.html")
    tab.open(tmp_path / "text.html")
    tab.hover(WORD.format(1))
    assert tab.evaluate("document.querySelector('#document .strongest').textContent") == "ball"
    assert lit(tab, "#document .chip") == [0, 0, 1, 0]
    assert status(tab).startswith("“ball” is most like “ball”, similarity 1.00")


def test_what_regions_look_at_is_told_from_their_side(tab: Tab, tmp_path: Path) -> None:
    """Each region's weights over the words add up to one: the first looks at "red" alone, the second at all alike."""
    weights = np.array([[0, 1 / 3], [1, 1 / 3], [0, 1 / 3]], np.float32)
    boxes = np.array([[0, 0, 64, 48], [40, 0, 64, 48]], np.float32)  # one within the other
    way = Way("i2t", "regions look at words", weights, over="words")
    lonely = Way("taken", "taken", np.array([[0, 0], [1, 0], [0, 0]], np.float32), over="words")
    write_page(
        Page("x", [Pair("a red ball", ("a", "red", "ball"), Canvas(None, SIZE, boxes), 0.5, (way, lonely))]),
        tmp_path / "x.html",
    )
    tab.open(tmp_path / "x.html")
    tab.hover(WORD.format(1))
    assert status(tab) == "“red”: region 1 looks most at it, weight 1.00"
    tab.hover(REGION.format(0))
    assert status(tab) == "region 1 looks most at “red”, weight 1.00"
    tab.hover(REGION.format(1))
    assert status(tab) == "region 2 looks most at “a”, weight 0.33 · nearly uniform"
    choose(tab, "way", 1, "change")
    tab.hover(WORD.format(2))
    assert status(tab) == "“ball”: no region looks at it"
    assert tab.evaluate("document.querySelector('#picture .strongest')") is None
    assert tab.errors == []
