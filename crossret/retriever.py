"""`Retriever`: a trained model with its words, which encodes, compares, searches and explains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from crossret.data.batches import Regions
from crossret.data.boxes import wrong_box
from crossret.data.pictures import read_picture
from crossret.data.precomputed import check_caption, check_words
from crossret.data.prepared import Prepared
from crossret.data.vocabulary import Vocabulary
from crossret.explain.explanation import Explanation
from crossret.files.arrays import map_array
from crossret.files.features import read_lengths
from crossret.files.json import write_json
from crossret.hub import download, upload
from crossret.model_card import write_card
from crossret.models import Encoded, Matcher, load_model, save_model
from crossret.models.base import captions_by, encoder_of, tokens_of
from crossret.models.checkpoints import CAPTIONS_BY, model_directory
from crossret.models.protocol import evaluating
from crossret.models.texts import new_captions
from crossret.search.items import encode_texts
from crossret.search.retrieval import retrieve
from crossret.search.stored import StoredEncoded
from crossret_kernels.extending import QUERIES, choose

Pathlike: TypeAlias = "str | os.PathLike[str]"
Images: TypeAlias = "Tensor | NDArray[Any] | Pathlike | Sequence[Tensor | NDArray[Any] | Pathlike] | Encoded"
Captions: TypeAlias = "Sequence[str] | Encoded"


class Found(NamedTuple):
    """Results of a search, best first.

    Attributes:
        scores: (queries, k) float32.
        indices: (queries, k) int64, places in the corpus; of equal scores the lower comes first.
    """

    scores: Tensor
    indices: Tensor


class Retriever:
    """A trained model with its words.

    Args:
        model: any of ``crossret.models``; put into evaluation mode.
        vocabulary: the one that it was trained with; None of a model that reads tokens of captions.
        transform: from a picture, a ``PIL.Image``, to pixels (3, H, W): for a model with a backbone, which reads
            pictures. Others read features.
    """

    def __init__(
        self, model: Matcher, vocabulary: Vocabulary | None, transform: Callable[[Any], Tensor] | None = None
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.transform = transform
        self.run: Path | None = None
        model.eval()

    @classmethod
    def from_pretrained(
        cls,
        name: Pathlike,
        *,
        device: str | torch.device | None = None,
        backbone: nn.Module | None = None,
        transform: Callable[[Any], Tensor] | None = None,
        text_encoder: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: Pathlike | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Retriever:
        """A retriever from a directory, or from a model of the Hugging Face Hub.

        Args:
            name: the output directory of ``crossret train``, of which the best epoch is taken; a model's own, as
                ``save_pretrained`` writes it; or, where there is no such directory, ``user/name`` of the Hub, which
                takes the extra ``hub``.
            device: where the model goes; the CPU by default.
            backbone: as ``load_model`` takes it.
            transform: as ``Retriever`` takes it.
            text_encoder: where the encoder is whose stored tokens of captions the model was trained on, which reads new
                captions; by default where it was.
            revision, token, cache_dir, force_download, local_files_only: of the Hub, as ``snapshot_download`` of
                ``huggingface_hub`` takes them.

        Raises:
            FileNotFoundError, ValueError: as ``load_model``. ImportError: the Hub is asked for without the extra.
        """
        place = Path(name)
        if not os.path.isdir(place):
            place = download(
                os.fspath(name),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
            )
        model, vocabulary = load_model(model_directory(place), backbone=backbone, text_encoder=text_encoder)
        made = cls(model if device is None else model.to(device), vocabulary, transform)
        made.run = place
        return made

    def save_pretrained(self, directory: Pathlike) -> None:
        """Write ``config.json``, ``vocabulary.json``, ``model.safetensors`` and ``README.md``, a model card.

        The card says what the model is, how it is used and, of a model that was loaded from a training, its settings
        and figures.
        """
        self._save(Path(directory), os.fspath(directory))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Add the model",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Put what ``save_pretrained`` writes on the Hugging Face Hub; returns the commit's address there.

        Args:
            repo_id: ``user/name``; made if there is none.
            commit_message, private, token, branch, create_pr: as ``ModelHubMixin`` of ``huggingface_hub`` has them.

        Raises:
            ImportError: the extra ``hub`` is missing.
        """
        return upload(
            lambda directory: self._save(directory, repo_id, published=True),
            repo_id,
            private=private,
            token=token,
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
        )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def encode_images(
        self,
        images: Images,
        lengths: Tensor | NDArray[Any] | None = None,
        *,
        boxes: Tensor | NDArray[Any] | None = None,
        batch_size: int = 128,
    ) -> Encoded:
        """Images as the model compares them.

        Args:
            images: region features: a tensor or array (n, R, D), a list of (R_i, D), or the path of such an array,
                ``.npy``, which is read a batch at a time. Of a model with an encoder: paths of pictures; of one with a
                backbone these, or pixels (n, 3, H, W). What is encoded already is returned as it is.
            lengths: (n,) int64, regions of each image; None: of a list each array's, of ``SPLIT_ims.npy`` those of
                ``SPLIT_lengths.npy`` beside it, if there is one, else all.
            boxes: (n, R, 4), x0, y0, x1, y1 of every region, for a model that reads them.
            batch_size: images encoded at a time.

        Raises:
            TypeError, ValueError: as ``Matcher.encode_images``. ValueError: pictures and no transform, no images, or
                ``batch_size`` is less than 1.
        """
        if isinstance(images, Encoded):
            return images
        items, own = self._images(images)
        if not len(items):
            raise ValueError("images: there are none")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        lengths = own if lengths is None else torch.as_tensor(lengths)
        boxes = None if boxes is None else torch.as_tensor(boxes)
        parts = []
        with evaluating(self.model):
            for start in range(0, len(items), batch_size):
                run = slice(start, start + batch_size)
                given = {"lengths": lengths, "boxes": boxes}
                batch = {name: part[run].to(self.device) for name, part in given.items() if part is not None}
                parts.append(self.model.encode_images(self._batch(items[run]), **batch))
        return Encoded.concat(parts)

    def encode_text(self, captions: str | Captions) -> Encoded:
        """Captions as the model compares them; one may stand alone. What is encoded already is returned as it is.

        Raises:
            TypeError, ValueError: there are none, or one is no text, shows nothing or has more words than the model
                reads; the model reads tokens and has no encoder of texts.
        """
        if isinstance(captions, Encoded):
            return captions
        texts = checked_captions(captions)
        check_words(texts, self.model.config, "captions, number")
        with evaluating(self.model):
            return encode_texts(self.model, texts, self.vocabulary)

    def similarity(self, images: Images, captions: str | Captions) -> Tensor:
        """Scores (n_images, n_captions), float32, of images and captions, encoded or not."""
        first, second = self.encode_images(images), self.encode_text(captions)
        with evaluating(self.model):
            return self.model.score(first, second)

    def search(self, queries: Any, corpus: Any, k: int = 10, *, query: str | None = None) -> Found:
        """The best k of a corpus for every query; no more than a block of scores ever exists.

        Args:
            queries, corpus: captions, as ``encode_text`` takes them, and images, as ``encode_images`` does, either way
                round; encoded or not. A corpus may be a directory that ``crossret encode`` wrote, of any size.
            k: how many; the whole corpus where it has fewer.
            query: kind of the queries, "caption" or "image"; None: what they, or a corpus of texts, tell; of encoded
                ones "caption". Strings are captions, but for names of an ``.npy`` or of a corpus' directory: pictures
                are Paths, or go with query="image".

        Raises:
            TypeError, ValueError: as what encodes, k is less than 1, or ``query`` is neither.
        """
        stored = isinstance(corpus, (str, os.PathLike)) and os.path.isdir(corpus)
        if query is None:
            encoded = isinstance(queries, Encoded) and (stored or not _are_texts(corpus))
            query = "caption" if encoded or _are_texts(queries) else "image"
        choose("query", query, QUERIES)
        if stored:
            side: Any = StoredEncoded.of_directory(Path(corpus), "images" if query == "caption" else "captions")
        else:
            side = self.encode_images(corpus) if query == "caption" else self.encode_text(corpus)
        wanted = self.encode_text(queries) if query == "caption" else self.encode_images(queries)
        return Found(*retrieve(self.model, wanted, side, k=k, query=query))

    def explain(self, image: Images, caption: str, *, boxes: Tensor | NDArray[Any] | None = None) -> Explanation:
        """Where the model looks in one image beside one caption, how it scores them, and what makes up that score.

        Args:
            image: one image, as ``encode_images`` takes it: features (R, D) or (1, R, D), or a picture's path.
            caption: one of the image's, or any other.
            boxes: (R, 4) of the regions in pixels, for ``Explanation.draw`` and ``html``; None where the model's
                encoder tells them of the picture or, without an encoder, where they are a grid over all of it.

        Raises:
            TypeError: the caption is no text.
            ValueError: as what encodes, or there are several images, a box is none, or the score is no finite number.
        """
        if not isinstance(caption, str):
            raise TypeError(f"caption: expected a text, not {type(caption).__name__}")
        if isinstance(image, (Tensor, np.ndarray)) and image.ndim == 2:
            image = image[None]
        picture, encoder = _picture(image), encoder_of(self.model)
        told = encoder is None or boxes is not None
        if picture is not None and encoder is not None:
            image, cells = self._tokens(picture)
            boxes = cells if boxes is None else boxes
        own = None if boxes is None else torch.as_tensor(boxes)[None].float().cpu()
        if own is not None and (own.dim() != 3 or own.shape[2] != 4):
            raise ValueError(f"boxes must have shape (R, 4), got {tuple(own.shape[1:])}")
        images, captions = self.encode_images(image, boxes=own), self.encode_text(caption)
        if len(images) != 1:
            raise ValueError(f"image: {len(images)} images, of which one is explained at a time")
        where = None if own is None else own[0].numpy()
        if where is not None and (wrong := wrong_box(where[None])) is not None:
            raise ValueError(f"boxes: that of region {wrong[1]} {wrong[2]}")
        boxes_in = None if told else self._boxes_in
        return Explanation.of(
            self.model,
            images,
            captions,
            caption,
            spans=new_captions(self.model, [caption], self.vocabulary).spans(0),
            boxes=where,
            picture=picture,
            boxes_in=boxes_in,
        )

    def _tokens(self, picture: Path) -> tuple[Tensor, Tensor]:
        """Tokens (1, R, D) of one picture by the model's encoder, and their boxes (R, 4)."""
        with evaluating(self.model):
            regions = tokens_of(self.model, Regions(self._batch([picture])))
        assert regions.boxes is not None
        return regions.features, regions.boxes[0]

    def _boxes_in(self, picture: Path) -> NDArray[np.float32]:
        boxes: NDArray[np.float32] = self._tokens(picture)[1].cpu().numpy()
        return boxes

    def _save(self, directory: Path, name: str, *, published: bool = False) -> None:
        save_model(self.model, directory, self.vocabulary)
        encoder = captions_by(self.model)
        if published and encoder is not None and os.path.isabs(encoder.name):  # a folder on this machine
            write_json(directory / CAPTIONS_BY, {**asdict(encoder), "name": ""})
        write_card(directory, name, self.model, self.vocabulary, self.run)

    def _images(self, images: Any) -> tuple[Any, Tensor | None]:
        """Something of images that slices, and their lengths where a list tells them."""
        if isinstance(images, (str, os.PathLike)):
            return _mapped(Path(images)) if Path(images).suffix == ".npy" else ([images], None)
        if isinstance(images, (Tensor, np.ndarray)):
            return images, None
        items = list(images)
        if not items or isinstance(items[0], (str, os.PathLike)):
            return items, None
        rows = [torch.as_tensor(item) for item in items]
        return pad_sequence(rows, batch_first=True), torch.tensor([len(item) for item in rows])

    def _batch(self, items: Any) -> Any:
        encoder = encoder_of(self.model)
        if encoder is not None and isinstance(items, list):
            return Prepared([encoder.reader.prepare_file(Path(path)) for path in items])
        if isinstance(items, list):
            return torch.stack(list(self._pixels(items))).to(self.device)
        part = torch.from_numpy(np.array(items, np.float32)) if isinstance(items, np.ndarray) else items
        return part.to(self.device, torch.float32)

    def _pixels(self, paths: Iterable[Pathlike]) -> Iterable[Tensor]:
        for path in paths:
            if self.transform is None or getattr(self.model, "backbone", None) is None:
                raise ValueError(
                    f"{path}: pictures are read by a model with a backbone, and a transform that makes pixels of them; "
                    f"this {self.model.kind} reads region features"
                )
            yield self.transform(read_picture(Path(path)))


load = Retriever.from_pretrained


def checked_captions(captions: str | Sequence[str]) -> list[str]:
    """Captions, of which one may stand alone; a TypeError or a ValueError where there are none, or one is none."""
    texts = [captions] if isinstance(captions, str) else list(captions)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"captions[{number}] must be a text, not {type(text).__name__}")
        check_caption(text, f"captions[{number}]")
    if not texts:
        raise ValueError("captions: there are none")
    return texts


def _mapped(path: Path) -> tuple[NDArray[np.floating], Tensor | None]:
    """The images of a file and, where it is a split's, the lengths that are told beside it."""
    features = map_array(path, ndim=3, dtypes=["<f4", "<f2"])
    split = path.name.removesuffix("_ims.npy")
    lengths = path.with_name(f"{split}_lengths.npy")
    if split == path.name or not lengths.exists():
        return features, None
    return features, torch.from_numpy(read_lengths(lengths, path.name, *features.shape[:2]))


def _picture(image: Any) -> Path | None:
    """The file of an image that is the path of one, alone or in a list, not of an array."""
    if isinstance(image, (list, tuple)) and len(image) == 1:
        image = image[0]
    path = Path(image) if isinstance(image, (str, os.PathLike)) else None
    return None if path is None or path.suffix == ".npy" else path


def _are_texts(side: Any) -> bool:
    """Whether these are captions: a text that is no array's name, or several."""
    if isinstance(side, str):
        return Path(side).suffix != ".npy"
    return isinstance(side, (list, tuple)) and len(side) > 0 and all(isinstance(item, str) for item in side)
