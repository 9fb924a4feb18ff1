"""Readers of files that other programs wrote: features, captions, words, word vectors, published checkpoints."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from crossret.captions.importing import import_captions
from crossret.compat.checkpoints import Words, import_checkpoint, read_vocabulary
from crossret.compat.features import import_features, open_source
from crossret.data.word_vectors import read_word_vectors
from crossret.files.json import write_json
from crossret.files.tensors import write_tensors
from tests.compat.checkpoints import published
from tests.compat.features.test_bottom_up import write as write_bottom_up
from tests.readers.target import DIM, GZIPPED, HEADER, IMAGES, REGIONS, WHOLE, WORDS, Part, Target, boxes, member, randn


def _array(folder: Path) -> None:
    np.save(folder / "x.npy", randn(IMAGES, REGIONS, DIM))
    np.save(folder / "boxes.npy", boxes(IMAGES, REGIONS))


def _numpy_zip(folder: Path) -> None:
    (folder / "x").mkdir()
    for name in "12":
        np.savez(folder / "x" / f"{name}.npz", x=randn(REGIONS, DIM), bbox=boxes(REGIONS), num_bbox=np.array(REGIONS))


def _tensors(folder: Path, name: str) -> None:
    features, places = torch.from_numpy(randn(IMAGES, REGIONS, DIM)), torch.from_numpy(boxes(IMAGES, REGIONS))
    tensors = {"features": features, "boxes": places, "image_ids": torch.arange(IMAGES)}
    if name.endswith(".safetensors"):
        write_tensors(folder / name, tensors, {"format": "pt"})
    else:
        published.save(tensors, folder / name, zipped=name.endswith(".pt"))


def _hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file["features"], file["boxes"] = randn(IMAGES, REGIONS, DIM), boxes(IMAGES, REGIONS)


def _tables(folder: Path) -> None:
    write_bottom_up(folder / "x.tsv", 7, 3)
    (folder / "ids.txt").write_bytes(b"3\n7\n3\n")


def _imported(folder: Path, name: str, **options: Any) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    names = {key: folder / value if key in ("boxes", "ids") else value for key, value in options.items()}
    import_features(open_source([folder / name], **names), folder / "out", "train")


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
    (folder / "ids.txt").write_bytes(b"1.jpg\n2\n")


def _read_captions(folder: Path, listed: bool = False) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    import_captions(folder / "captions", folder / "out", split="test", listed=folder / "ids.txt" if listed else None)


def _pickled_words(folder: Path) -> None:
    """As VSE++'s vocab.py writes them."""
    contents = json.loads(WORDS.to_json())
    contents["idx2word"] = {int(number): word for number, word in contents["idx2word"].items()}
    (folder / "words").write_bytes(_pickle("vocab", "Vocabulary", contents, 2))


def _pickle(module: str, name: str, contents: Mapping[str, Any], protocol: int) -> bytes:
    """An object of a class of a module that is not there."""
    kind = type(name, (), {"__module__": module})
    names = [module.rsplit(".", count)[0] for count in range(module.count(".") + 1)]
    saved = kind()
    vars(saved).update(contents)
    with mock.patch.dict(sys.modules, dict.fromkeys(names, types.SimpleNamespace(**{name: kind}))):
        return pickle.dumps(saved, protocol)


_TABLE = randn(2, DIM)
_LINES = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(("cat", "mat"), _TABLE, strict=True))


def _word_vectors() -> list[bytes]:
    """A text and a binary file."""
    binary = b"".join(word + b" " + row.tobytes() for word, row in zip((b"cat", b"mat"), _TABLE, strict=True))
    return [f"2 {DIM}\n{_LINES}".encode(), f"2 {DIM}\n".encode() + binary]


def _lines(folder: Path) -> None:
    (folder / "text").write_text(_LINES)
    (folder / "x.gz").write_bytes(gzip.compress(_LINES.encode()))


def _keyed_vectors(folder: Path, vectors: Any = None) -> None:
    contents = {"index_to_key": ["cat", "mat"], "vectors": vectors, "next_index": np.int64(2)}
    (folder / "x").write_bytes(_pickle("gensim.models.keyedvectors", "KeyedVectors", contents, 4))
    np.save(folder / "x.vectors.npy", _TABLE)


def _features(name: str, file: str | None = None, part: Part = WHOLE, **options: Any) -> Target:
    """A reader of ``import_features``, by the file that it is given."""
    own: dict[str, Callable[[Path], None]] = {"x.npy": _array, "x": _numpy_zip, "x.tsv": _tables, "x.h5": _hdf5}
    make = own.get(name, partial(_tensors, name=name))
    return Target(make, file or name, partial(_imported, name=name, **options), part)


def _checkpoint(kind: str, file: str, part: Part = WHOLE) -> Target:
    """A published checkpoint, with the files beside it."""

    def write(folder: Path) -> None:
        published.save(getattr(published, f"{kind}_checkpoint")(), folder / "x", zipped=kind != "vse")
        published.word_files(folder, ("UNK", "dog", "cat", "mat", "eos"))

    def read(folder: Path) -> None:
        words = Words(folder / "utable.npy", folder / "dictionary.txt") if kind == "mhsan" else None
        import_checkpoint(folder / "x", published.VOCABULARY, words)

    return Target(write, file, read, part)


def _vectors(file: str, make: Callable[[Path], object], part: Part = WHOLE) -> Target:
    seeds = _word_vectors if file in ("text", "x.gz") else list
    name = {"dictionary.txt": "utable.npy", "x.vectors.npy": "x"}.get(file, file)
    return Target(make, file, lambda folder: read_word_vectors(folder / name, WORDS.idx2word), part, seeds)


PICKLE = member("/data.pkl")
IMPORTED: dict[str, Target] = {
    "features/array": _features("x.npy", boxes="boxes.npy"),
    "features/boxes": _features("x.npy", "boxes.npy", boxes="boxes.npy"),
    "features/npz": _features("x", "x/1.npz"),
    "features/npz-array": _features("x", "x/1.npz", member("x.npy")),
    "features/npz-count": _features("x", "x/1.npz", member("num_bbox.npy")),
    "features/tsv": _features("x.tsv"),
    "features/tsv-ids": _features("x.tsv", "ids.txt", ids="ids.txt"),
    "features/hdf5": _features("x.h5", dataset="features", box_dataset="boxes"),
    "features/safetensors": _features("x.safetensors", part=HEADER),
    "features/pt": _features("x.pt"),
    "features/pt-pickle": _features("x.pt", part=PICKLE),
    "features/pt-legacy": _features("x.pth"),
    "captions/file": Target(_karpathy, "captions", _read_captions, seeds=_captions),
    "captions/ids": Target(_karpathy, "ids.txt", partial(_read_captions, listed=True)),
    "words/json": Target(
        lambda folder: WORDS.save(folder / "words"), "words", lambda folder: read_vocabulary(folder / "words")
    ),
    "words/pickle": Target(_pickled_words, "words", lambda folder: read_vocabulary(folder / "words")),
    "vectors/text": _vectors("text", _lines),
    "vectors/gzip": _vectors("x.gz", _lines),
    "vectors/gzipped": _vectors("x.gz", _lines, GZIPPED),
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
}
