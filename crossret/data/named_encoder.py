"""An encoder by its name: what made stored tokens, and is loaded again when something new is to be read by it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NamedEncoder:
    """An encoder of pictures or of texts that is not at hand.

    Attributes:
        name: as ``load_picture_encoder`` and ``load_text_encoder`` take it; a folder by its absolute path.
            Empty where that is not published.
        identity: as ``crossret.extraction.resuming.identity`` tells it from others.
    """

    name: str
    identity: str

    @staticmethod
    def of(name: str, identity: str) -> NamedEncoder:
        """An encoder by the name that a user types: a folder, or a model of the Hub."""
        return NamedEncoder(os.path.abspath(name) if os.path.isdir(name) else name, identity)

    @staticmethod
    def of_json(contents: Any, place: str) -> NamedEncoder:
        """An encoder from the dict that ``dataclasses.asdict`` made.

        Raises:
            ValueError: it is something else; names ``place``.
        """
        if not isinstance(contents, Mapping) or contents.keys() != {"name", "identity"}:
            raise ValueError(f"{place} must be an object of name and identity")
        if not all(isinstance(part, str) for part in contents.values()):
            raise ValueError(f"{place} must have a name and an identity that are texts")
        return NamedEncoder(**contents)
