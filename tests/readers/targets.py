"""Readers of files from others, each with valid files of the library's own making, one of which a stranger wrote.

What such a file holds may end a reader in an OSError or a ValueError that names it, and in nothing else. The seeds are
the valid files. ``python -m tests.readers.fuzz`` looks for others, and a test tries a few hundred.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import shutil
import sys
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import typer
from PIL import Image

from crossret.captions.importing import import_captions
from crossret.cli.commands.application import app
from crossret.cli.run_config import use_config, write_config
from crossret.compat.checkpoints import Words, import_checkpoint, read_vocabulary
from crossret.compat.features import import_features, open_source
from crossret.data import PrecomputedDataset, Vocabulary
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.named_encoder import NamedEncoder
from crossret.data.owners import write_owners
from crossret.data.pictures import read_picture
from crossret.data.precomputed import read_captions, read_ids
from crossret.data.scenes.grounding import read_grounding
from crossret.data.word_vectors import read_word_vectors
from crossret.evaluation.ensembles import StoredScores
from crossret.explain.page.contents import Canvas, Page, Pair, Result
from crossret.explain.page.writing import page_html
from crossret.files.atomic import atomic_write
from crossret.files.features import StoredItems
from crossret.files.json import write_json, write_json_lines
from crossret.files.tensors import write_tensors
from crossret.model_card import write_card
from crossret.models import MODELS, load_model, save_model
from crossret.models.checkpoints import CAPTIONS_BY
from crossret.models.encoded import Encoded
from crossret.picture_index import PictureIndex
from crossret.picture_index.files import Picture, write_index, write_pictures
from crossret.search.candidates import read_candidates
from crossret.search.encoding import encode_split
from crossret.search.sharding import cut_corpus
from crossret.search.stored import StoredEncoded
from crossret.training.optimizer import optimizer_of
from crossret.training.randomness import random_state, set_random_state
from crossret.training.state import Machine, Position, load_state, save_state
from tests.compat.checkpoints import published
from tests.compat.features.test_bottom_up import write as write_bottom_up
from tests.models.batch import SIZES, SMALL, encode, make

IMAGES, REGIONS, DIM = 3, 2, 4
WORDS = Vocabulary(["cat", "dog", "mat"])
CPU = torch.device("cpu")
LARGEST_SEED = 2**16  # bytes: what is larger takes its time in every try


@dataclass(frozen=True)
class Part:
    """What of a file a stranger chooses: ``get`` takes it out of a file's bytes, ``put`` puts another in its place."""

    get: Callable[[bytes], bytes]
    put: Callable[[bytes, bytes], bytes]


@dataclass(frozen=True)
class Target:
    """A reader and the file of which strangers' bytes become a part.

    Attributes:
        make: writes valid files into an empty folder.
        file: the stranger's, one of these.
        read: reads the folder, and takes what was read as its user does.
        part: of the file.
        seeds: other valid contents of the part.
        raises: what else than an OSError and a ValueError is documented.
    """

    make: Callable[[Path], object]
    file: str
    read: Callable[[Path], object]
    part: Part = field(default_factory=lambda: WHOLE)
    seeds: Callable[[], list[bytes]] = list
    raises: tuple[type[Exception], ...] = ()

    @contextmanager
    def opened(self, folder: Path) -> Iterator[tuple[list[bytes], Callable[[bytes], bool]]]:
        """Seeds, and what tries the bytes that it is called with, in an empty folder: whether they are read."""
        with _quiet():
            self.make(folder)
        whole = (folder / self.file).read_bytes()
        yield [self.part.get(whole), *self.seeds()], partial(self._try, folder, whole)

    def _try(self, folder: Path, whole: bytes, found: bytes) -> bool:
        (folder / self.file).write_bytes(self.part.put(whole, found))
        try:
            with _quiet():
                self.read(folder)
        except (OSError, ValueError, *self.raises) as error:
            if str(folder) not in str(error):
                raise AssertionError(f"the error names no file: {error!r}") from error
            return False
        return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings of the library are for users; those of others are of something that it should have refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)
        yield


def _header_of(contents: bytes) -> int:
    return 8 + int.from_bytes(contents[:8], "little")


def _member(name: str) -> Part:
    """A file within a zip file, by how its name ends."""

    def get(whole: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            return archive.read(next(own for own in archive.namelist() if own.endswith(name)))

    def put(whole: bytes, found: bytes) -> bytes:
        contents = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(contents, "w") as changed:
            for own in archive.namelist():
                changed.writestr(own, found if own.endswith(name) else archive.read(own))
        return contents.getvalue()

    return Part(get, put)


WHOLE = Part(lambda whole: whole, lambda _, found: found)
HEADER = Part(
    lambda whole: whole[8 : _header_of(whole)],
    lambda whole, found: len(found).to_bytes(8, "little") + found + whole[_header_of(whole) :],
)
GZIPPED = Part(gzip.decompress, lambda _, found: gzip.compress(found, 1))


def _randn(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _boxes(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.abs(_randn(*shape, 4)).cumsum(-1).astype(np.float32)


def _write(path: Path, contents: bytes) -> None:
    with atomic_write(path) as file:
        file.write(contents)


# Features of other programs.


def _array(folder: Path) -> None:
    np.save(folder / "x.npy", _randn(IMAGES, REGIONS, DIM))
    np.save(folder / "boxes.npy", _boxes(IMAGES, REGIONS))
    _write(folder / "ids.txt", b"1\n2\n3\n")


def _numpy_zip(folder: Path) -> None:
    (folder / "x").mkdir()
    for name in "12":
        np.savez(folder / "x" / f"{name}.npz", x=_randn(REGIONS, DIM), bbox=_boxes(REGIONS), num_bbox=np.array(REGIONS))


def _of_images(folder: Path, name: str, write: Callable[[Path, dict[str, Any]], object]) -> None:
    write(folder / name, {"features": torch.from_numpy(_randn(IMAGES, REGIONS, DIM)),
                          "boxes": torch.from_numpy(_boxes(IMAGES, REGIONS)),
                          "image_ids": torch.arange(IMAGES)})  # fmt: skip


def _save(path: Path, contents: Any, *, zipped: bool = True) -> None:
    published.save(contents, path, zipped=zipped)


def _hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file["features"], file["boxes"] = _randn(IMAGES, REGIONS, DIM), _boxes(IMAGES, REGIONS)


def _tables(folder: Path) -> None:
    write_bottom_up(folder / "x.tsv", 7, 3)
    _write(folder / "ids.txt", b"3\n7\n3\n")


def _imported(folder: Path, name: str, **options: Any) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    names = {key: folder / value if key in ("boxes", "ids") else value for key, value in options.items()}
    import_features(open_source([folder / name], **names), folder / "out", "train")


# A data set.


def _data(folder: Path) -> None:
    np.save(folder / "test_ims.npy", _randn(IMAGES, REGIONS, DIM))
    np.save(folder / "test_boxes.npy", _boxes(IMAGES, REGIONS))
    np.save(folder / "test_lengths.npy", np.array([2, 1, 2]))
    _write(folder / "test_caps.txt", "a cat\na dog — “here”\ncat and mat\nmat\n".encode())
    _write(folder / "test_ids.txt", b"1\n2\n3\n")
    _write(folder / "test_caption_ids.txt", b"11\n12\n13\n14\n")
    write_json(folder / "id_mapping.json", {"1": "COCO_val2014_000000000001.jpg", "2": "a/b.jpg", "3": "3.jpg"})
    write_owners(folder / "test_image_of_caption.npy", [1, 1, 2])


def _read_data(folder: Path) -> None:
    data = PrecomputedDataset(folder, "test")
    for image in range(len(data.stored)):
        data.stored.is_finite(image)
    data.first(1)
    for batch in PrecomputedCorpus(data, WORDS).caption_batches(2):
        assert len(batch[0])


def _packed(folder: Path) -> None:
    np.save(folder / "values.npy", _randn(5, DIM))
    np.save(folder / "offsets.npy", np.array([0, 2, 5]))


def _padded(folder: Path) -> None:
    np.save(folder / "features.npy", _randn(IMAGES, REGIONS, DIM))
    np.save(folder / "lengths.npy", np.array([2, 1, 2]))


def _read_items(folder: Path) -> None:
    items = StoredItems.of_directory(folder)
    for item in range(min(len(items), 10)):
        items.is_finite(item)


def _captions() -> list[bytes]:
    """A file of every kind."""
    coco = {"images": [{"id": 4, "file_name": "COCO_val2014_000000000004.jpg"}],
            "annotations": [{"image_id": 4, "id": 9, "caption": "a cat"}]}  # fmt: skip
    lavis = [{"image": "a/1.jpg", "caption": ["a cat", "a mat"], "image_id": "x"}, {"image": "2.jpg", "caption": "mat"}]
    return [
        json.dumps(coco).encode(),
        json.dumps(lavis).encode(),
        "\n".join(map(json.dumps, lavis)).encode(),
        json.dumps({"1.jpg": ["a cat"], "2.jpg": "a dog"}).encode(),
        b"1000092795.jpg#0\ta cat\n1000092795.jpg#1\ta \"dog\"\n2.jpg.1#0\tmat\n",
        b"image_name| comment_number| comment\n1.jpg| 0| a cat\n1.jpg| 1 a dog\n",
        b'image,caption,split\n1.jpg,"a ""cat"",\nhere",val\n2.jpg,dog,test\n',
        b"1.jpg;a cat;dog\n2.jpg;\"a mat\"\n",
    ]  # fmt: skip


def _karpathy(folder: Path) -> None:
    sentences = [{"raw": "a cat", "sentid": 0}, {"raw": "a dog", "sentid": 1}]
    write_json(folder / "captions", {"images": [
        {"filename": "1.jpg", "cocoid": 4, "split": "restval", "sentences": sentences},
        {"filename": "2.jpg", "imgid": 1, "split": "test", "sentences": sentences[:1]}]})  # fmt: skip
    _write(folder / "ids.txt", b"1.jpg\n2\n")


def _read_captions(folder: Path, listed: bool = False) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    import_captions(folder / "captions", folder / "out", split="test", listed=folder / "ids.txt" if listed else None)


def _pickled_words(folder: Path) -> None:
    """As VSE++'s vocab.py writes them."""
    contents = json.loads(WORDS.to_json())
    contents["idx2word"] = {int(number): word for number, word in contents["idx2word"].items()}
    _write(folder / "words", _pickle("vocab", "Vocabulary", contents, 2))


def _pickle(module: str, name: str, contents: Mapping[str, Any], protocol: int) -> bytes:
    """An object of a class of a module that is not there."""
    kind = type(name, (), {"__module__": module})
    names = [module.rsplit(".", count)[0] for count in range(module.count(".") + 1)]
    made = {own: types.ModuleType(own) for own in names}
    vars(made[module])[name] = kind
    saved = kind()
    vars(saved).update(contents)
    with mock.patch.dict(sys.modules, made):
        return pickle.dumps(saved, protocol)


# Word vectors.

_TABLE = _randn(2, DIM)
_LINES = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(("cat", "mat"), _TABLE, strict=True))


def _word_vectors() -> list[bytes]:
    """A text and a binary file."""
    binary = b"".join(word + b" " + row.tobytes() for word, row in zip((b"cat", b"mat"), _TABLE, strict=True))
    return [f"2 {DIM}\n{_LINES}".encode(), f"2 {DIM}\n".encode() + binary]


def _keyed_vectors(folder: Path, vectors: Any = None) -> None:
    contents = {"index_to_key": ["cat", "mat"], "vectors": vectors, "next_index": np.int64(2)}
    _write(folder / "x", _pickle("gensim.models.keyedvectors", "KeyedVectors", contents, 4))
    np.save(folder / "x.vectors.npy", _TABLE)


# Models.


def _model(folder: Path, kind: str = "scan") -> Any:
    config_class, model_class = MODELS[kind]
    sizes: dict[str, Any] = {**SIZES, "image_dim": DIM, "vocabulary_size": len(WORDS), **SMALL[kind]}
    torch.manual_seed(0)
    model: Any = model_class(config_class(**sizes))
    save_model(model, folder, WORDS)
    return model


def _model_of_tokens(folder: Path) -> None:
    _model(folder)
    write_json(folder / CAPTIONS_BY, asdict(NamedEncoder("models/bert", "0123")))


@cache
def _trained() -> tuple[Any, Any, dict[str, Any]]:
    """A model, its optimizer after a step, and what identifies the training."""
    from crossret.hyperparameters import TrainingConfig

    model = make("vse")
    optimizer = optimizer_of(model, TrainingConfig())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer, {"seed": 1}


def _training(folder: Path) -> None:
    model, optimizer, run = _trained()
    save_state(
        folder / "x", model, optimizer, random_state(CPU), Position(step=3, epoch_step=3), run, Machine.this(CPU)
    )


def _resume(folder: Path) -> None:
    model, optimizer, run = _trained()
    before = random_state(CPU)
    try:
        set_random_state(load_state(folder / "x", model, optimizer, before, run, 10)[1], CPU)
    finally:
        set_random_state(before, CPU)


def _encoded(folder: Path) -> None:
    _data(folder)
    for name in ("id_mapping.json", "test_lengths.npy"):
        (folder / name).unlink()
    model = _model(folder / "model", "oan")
    encode_split(model, PrecomputedCorpus(PrecomputedDataset(folder, "test"), WORDS), folder / "encoded")


def _read_encoded(folder: Path) -> None:
    model, _ = load_model(folder / "model")
    stored = StoredEncoded.of_directory(folder / "encoded", "images")
    stored.check(model)
    items = stored.items(CPU)
    for run in items.runs(10):
        items[run]
    stored.why_not_finite(0)


def _index(folder: Path) -> None:
    (folder / "corpus").mkdir()
    _packed(folder / "corpus")
    cut_corpus(folder / "corpus", folder / "images", shards=2)
    for shard in ("00000", "00001"):
        write_pictures(folder / "images" / shard, [Picture("/album", "a/1.jpg", 10, 20)])
    write_index(folder, NamedEncoder("stand-in", "0123"))


def _read_index(folder: Path) -> None:
    index = PictureIndex(folder)
    assert not isinstance(index.images, StoredEncoded)
    for number in range(len(index.images.shards)):
        index.images.open(number)


# Settings, logs and what pages show.


def _settings(folder: Path) -> None:
    settings = {
        "data": folder,
        "model": "oan",
        "settings": ["heads=2"],
        "epochs": 3,
        "learning_rate": 0.1,
        "tf32": True,
    }
    write_config(folder / "x.toml", "train", settings)


@cache
def _command() -> Any:
    return typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]


def _read_settings(folder: Path) -> None:
    context = _command().context_class(_command(), info_name="train")
    use_config(context, folder / "x.toml")
    for value in (context.default_map or {}).values():
        value()


def _run(folder: Path) -> None:
    _model(folder, "vse")
    recalls = {f"{way}_{recall}": 1.5 for way in ("i2t", "t2i") for recall in ("r1", "r5", "r10")}
    write_json_lines(folder / "log.jsonl", [{"kind": "epoch", "best": True, "epoch": 2, **recalls}])
    write_config(folder / "run.toml", "train", {"data": folder, "epochs": 3})


def _read_run(folder: Path) -> None:
    write_card(folder, "mine", *load_model(folder), folder)


def _candidates() -> list[bytes]:
    array = io.BytesIO()
    np.save(array, np.array([[0, 1], [2, -1]]))
    return [array.getvalue()]


def _pictures() -> list[bytes]:
    """A picture of other kinds."""
    pixels = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    turned = Image.Exif()
    turned[0x112] = 6  # Orientation
    kinds: list[tuple[str, Image.Image, dict[str, Any]]] = [
        *((kind, pixels, {}) for kind in ("GIF", "BMP", "TIFF", "WEBP")),
        *(("PNG", pixels.convert(mode), {}) for mode in ("P", "I;16", "LA")),
        ("JPEG", pixels, {"exif": turned}),
        ("TIFF", pixels.convert("F"), {"compression": "tiff_lzw"}),
    ]
    made = []
    for kind, picture, options in kinds:
        contents = io.BytesIO()
        picture.save(contents, kind, **options)
        made.append(contents.getvalue())
    return made


def _photograph(folder: Path) -> None:
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(folder / "x.png")
    _write(folder / "captions.txt", "a </script><img src=x onerror=boom()> & “cat”\n<!-- <script>\n".encode())
    _write(folder / "ids.txt", b"<b>1\n'2\n")


class _Elements(HTMLParser):
    """The tags of a page, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(f"{tag} {' '.join(name for name, _ in attrs)}")


def _read_page(folder: Path) -> None:
    """A page holds captions and names as they are, and no element of theirs."""
    captions, names = read_captions(folder / "captions.txt")[:9], read_ids(folder / "ids.txt")[:9] or ["none"]
    made = [
        _page(folder / "x.png", *texts) for texts in ((captions, names), (["a"] * len(captions), ["a"] * len(names)))
    ]
    assert _Elements(made[0]).found == _Elements(made[1]).found
    text = re.search('<script type="application/json" id="data">(.*?)</script>', made[0], re.DOTALL)
    assert text is not None
    assert [pair["caption"] for pair in json.loads(text[1])["pairs"]] == captions


def _page(picture: Path, captions: list[str], names: list[str]) -> str:
    results = [Result(1, name, 0.5, picture=picture) for name in names]
    pairs = [
        Pair(
            caption, (caption,), Canvas(picture, (4, 4), None), 1.0, (), None, about=names[0], found={"found": results}
        )
        for caption in captions
    ]
    return page_html(Page(captions[0], pairs, facts=[(captions[-1], names[-1])], unseen=names[0], notes=captions))


def _grounding(folder: Path) -> None:
    write_json_lines(folder / "x", [{"words": ["a", "cat"], "named": [[1, [0, 0, 4, 5]]], "pos": ["DET", "NOUN"]}])


def _saved_encoded(folder: Path) -> None:
    encode(make("oan"))[0].save(folder / "x")


def _features(name: str, file: str | None = None, part: Part | None = None, **options: Any) -> Target:
    """A reader of ``import_features``, by the file that it is given."""
    make: Callable[[Path], object] = {
        "x.npy": _array,
        "x": _numpy_zip,
        "x.tsv": _tables,
        "x.h5": _hdf5,
        "x.safetensors": partial(
            _of_images, name=name, write=lambda path, contents: write_tensors(path, contents, {"format": "pt"})
        ),
        "x.pt": partial(_of_images, name=name, write=_save),
        "x.pth": partial(_of_images, name=name, write=partial(_save, zipped=False)),
    }[name]
    return Target(make, file or name, partial(_imported, name=name, **options), part or WHOLE)


def _checkpoint(kind: str, file: str, part: Part | None = None) -> Target:
    """A published checkpoint, with the files beside it."""

    def write(folder: Path) -> None:
        made = {"mhsan": published.mhsan_checkpoint, "scan": published.scan_checkpoint, "vse": published.vse_checkpoint}
        _save(folder / "x", made[kind](), zipped=kind != "vse")
        published.word_files(folder, ("UNK", "dog", "cat", "mat", "eos"))

    def read(folder: Path) -> None:
        words = Words(folder / "utable.npy", folder / "dictionary.txt") if kind == "mhsan" else None
        import_checkpoint(folder / "x", published.VOCABULARY, words)

    return Target(write, file, read, part or WHOLE)


def _vectors(file: str, make: Callable[[Path], object], part: Part | None = None) -> Target:
    seeds = _word_vectors if file in ("text", "x.gz") else list
    name = {"dictionary.txt": "utable.npy", "x.vectors.npy": "x"}.get(file, file)
    return Target(make, file, lambda folder: read_word_vectors(folder / name, WORDS.idx2word), part or WHOLE, seeds)


PICKLE = _member("/data.pkl")
TARGETS: dict[str, Target] = {
    "features/array": _features("x.npy", boxes="boxes.npy"),
    "features/boxes": _features("x.npy", "boxes.npy", boxes="boxes.npy"),
    "features/npz": _features("x", "x/1.npz"),
    "features/npz-array": _features("x", "x/1.npz", _member("x.npy")),
    "features/npz-count": _features("x", "x/1.npz", _member("num_bbox.npy")),
    "features/tsv": _features("x.tsv"),
    "features/tsv-ids": _features("x.tsv", "ids.txt", ids="ids.txt"),
    "features/hdf5": _features("x.h5", dataset="features", box_dataset="boxes"),
    "features/safetensors": _features("x.safetensors", part=HEADER),
    "features/pt": _features("x.pt"),
    "features/pt-pickle": _features("x.pt", part=PICKLE),
    "features/pt-legacy": _features("x.pth"),
    **{
        f"data/{name}": Target(_data, name, _read_data)
        for name in (
            *("test_ims.npy", "test_boxes.npy", "test_lengths.npy", "test_image_of_caption.npy"),
            *("test_caps.txt", "test_ids.txt", "test_caption_ids.txt", "id_mapping.json"),
        )
    },
    "data/values.npy": Target(_packed, "values.npy", _read_items),
    "data/offsets.npy": Target(_packed, "offsets.npy", _read_items),
    "data/features.npy": Target(_padded, "features.npy", _read_items),
    "data/lengths.npy": Target(_padded, "lengths.npy", _read_items),
    "data/grounding": Target(_grounding, "x", lambda folder: read_grounding(folder / "x")),
    "captions/file": Target(_karpathy, "captions", _read_captions, seeds=_captions),
    "captions/ids": Target(_karpathy, "ids.txt", partial(_read_captions, listed=True)),
    "words/json": Target(
        lambda folder: WORDS.save(folder / "words"), "words", lambda folder: read_vocabulary(folder / "words")
    ),
    "words/pickle": Target(_pickled_words, "words", lambda folder: read_vocabulary(folder / "words")),
    "vectors/text": _vectors("text", lambda folder: _write(folder / "text", _LINES.encode())),
    "vectors/gzip": _vectors("x.gz", lambda folder: _write(folder / "x.gz", gzip.compress(_LINES.encode()))),
    "vectors/gzipped": _vectors(
        "x.gz", lambda folder: _write(folder / "x.gz", gzip.compress(_LINES.encode())), GZIPPED
    ),
    "vectors/keyed": _vectors("x", _keyed_vectors),
    "vectors/keyed-within": _vectors("x", partial(_keyed_vectors, vectors=_TABLE)),
    "vectors/keyed-beside": _vectors("x.vectors.npy", _keyed_vectors),
    "vectors/table": _vectors("utable.npy", published.word_files),
    "vectors/dictionary": _vectors("dictionary.txt", published.word_files),
    "checkpoint/scan": _checkpoint("scan", "x"),
    "checkpoint/scan-pickle": _checkpoint("scan", "x", PICKLE),
    "checkpoint/vse-legacy": _checkpoint("vse", "x"),
    "checkpoint/mhsan-pickle": _checkpoint("mhsan", "x", PICKLE),
    "checkpoint/mhsan-words": _checkpoint("mhsan", "utable.npy"),
    "checkpoint/mhsan-dictionary": _checkpoint("mhsan", "dictionary.txt"),
    **{f"model/config-{kind}": Target(partial(_model, kind=kind), "config.json", load_model) for kind in MODELS},
    "model/captions_by": Target(_model_of_tokens, "captions_by.json", load_model),
    "model/vocabulary": Target(_model, "vocabulary.json", load_model),
    "model/weights": Target(_model, "model.safetensors", load_model),
    "model/header": Target(_model, "model.safetensors", load_model, HEADER),
    "model/log": Target(_run, "log.jsonl", _read_run),
    "model/run": Target(_run, "run.toml", _read_run),
    "training/checkpoint": Target(_training, "x", _resume),
    "training/header": Target(_training, "x", _resume, HEADER),
    "training/settings": Target(_settings, "x.toml", _read_settings, raises=(typer.BadParameter,)),
    "encoded/tensors": Target(_saved_encoded, "x", lambda folder: Encoded.load(folder / "x")),
    "encoded/header": Target(_saved_encoded, "x", lambda folder: Encoded.load(folder / "x"), HEADER),
    **{
        f"encoded/{name}": Target(_encoded, f"encoded/images/{name}", _read_encoded)
        for name in ("model.json", "values.npy", "offsets.npy", "vectors_heads.npy")
    },
    "index/encoder": Target(_index, "index.json", _read_index),
    "index/shards": Target(_index, "images/shards.json", _read_index),
    "index/pictures": Target(_index, "images/00000/pictures.json", _read_index),
    "search/candidates": Target(
        lambda folder: write_json_lines(folder / "x", [{"query": 0, "results": [{"index": 1}, {"index": 0}]}]),
        "x",
        lambda folder: read_candidates(folder / "x"),
        seeds=_candidates,
    ),
    "search/scores": Target(
        lambda folder: np.save(folder / "x.npy", _randn(2, 3)),
        "x.npy",
        lambda folder: StoredScores.of_file(folder / "x.npy", (2, 3))(),
    ),
    "pictures/file": Target(_photograph, "x.png", lambda folder: read_picture(folder / "x.png"), seeds=_pictures),
    "page/captions": Target(_photograph, "captions.txt", _read_page),
    "page/ids": Target(_photograph, "ids.txt", _read_page),
    "page/picture": Target(_photograph, "x.png", _read_page, seeds=_pictures),
}
