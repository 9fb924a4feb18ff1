"""An index of pictures: what a model made of those in some folders, with that model, to be searched by text."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from crossret.extraction.choosing import load_picture_encoder
from crossret.extraction.late_interaction import LateInteractionTexts
from crossret.extraction.protocol import PictureEncoder
from crossret.files.shards import StoredShards
from crossret.models.base import encoder_of
from crossret.picture_index.files import MODEL_DIRECTORY, PICTURES, encoder_of_index, has_model, read_pictures
from crossret.retriever import Found, Retriever, checked_captions
from crossret.search.manifest import IMAGES
from crossret.search.retrieval import retrieve
from crossret.search.stored import StoredEncoded
from crossret_kernels import maxsim_scores


class PictureIndex:
    """Pictures that are found by text.

    Attributes:
        directory: where it is.
        retriever: its model, with its words; None where an encoder of late interaction does without.
        pictures: the files, in the order of ``Found.indices``.
        images: their encodings.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, device: Any = None, text_encoder: str | None = None
    ) -> None:
        """Open what ``crossret index`` made.

        Args:
            directory: of the index.
            device: where its model goes, or its encoder of texts; the CPU by default.
            text_encoder: as that of ``Retriever.from_pretrained``.

        Raises:
            OSError: it is no index, or a file cannot be read. ValueError: a file is malformed; names it.
        """
        self.directory = Path(directory)
        self._device = torch.device("cpu" if device is None else device)
        self._encoder = encoder_of_index(self.directory)
        self._loaded: PictureEncoder[Any] | None = None
        images = self.directory / IMAGES
        self.retriever: Retriever | None = None
        self.images: StoredEncoded | StoredShards
        if has_model(self.directory):
            self.retriever = Retriever.from_pretrained(
                self.directory / MODEL_DIRECTORY, device=device, text_encoder=text_encoder
            )
            self.images = StoredEncoded.of_directory(images, IMAGES)
            shards = self.images.shards
        elif text_encoder is not None:
            raise ValueError(f"{directory}: text_encoder was given, but its own encoder reads texts, too")
        else:
            self.images = shards = StoredShards.of_directory(images)
        self.pictures: list[Path] = []
        for shard in shards.shards:
            own = read_pictures(shard.directory)
            if len(own) != shard.items:
                raise ValueError(f"{shard.directory / PICTURES}: {len(own)} pictures of {shard.items} items")
            self.pictures += [picture.path for picture in own]

    def __len__(self) -> int:
        return len(self.pictures)

    def search(self, captions: str | list[str], k: int = 10) -> Found:
        """The best k pictures for every caption: ``pictures`` has the file of each of ``Found.indices``.

        Raises:
            TypeError, ValueError: as ``Retriever.encode_text``, or k is less than 1; without a model as
                ``text_encoder``.
        """
        scorer, queries = self.asked(captions)
        return Found(*retrieve(scorer, queries, self.images, k=k, query="caption"))

    def asked(self, captions: str | list[str]) -> tuple[Any, Any]:
        """Scorer of pictures with captions, and the captions as it takes them; raises as ``search``."""
        if self.retriever is not None:
            return self.retriever.model, self.retriever.encode_text(captions)
        texts = checked_captions(captions)
        with torch.inference_mode():
            tokens = self.text_encoder().encode_texts(texts)
        rows = list(tokens.values.float().cpu().split(tokens.lengths))
        # Pictures stand where images do: every token of a query takes its best of theirs.
        return partial(maxsim_scores, direction="t2i"), rows

    def picture_encoder(self) -> PictureEncoder[Any]:
        """Encoder that made the tokens of its pictures, on its device: the model's own, or by its name, loaded once.

        Raises:
            OSError, ValueError: as ``load_picture_encoder``.
        """
        encoder = None if self.retriever is None else encoder_of(self.retriever.model)
        if encoder is not None:
            return encoder.reader
        if self._loaded is None:
            self._loaded = load_picture_encoder(self._encoder.name)
            self._loaded.module.to(self._device)
        return self._loaded

    def text_encoder(self) -> LateInteractionTexts:
        """Encoder of texts beside ``picture_encoder``, of an index without a model; raises as it does."""
        return LateInteractionTexts(self._encoder.name, module=self.picture_encoder().module)


load_index = PictureIndex
