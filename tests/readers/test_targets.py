"""Readers of files from others take what the library wrote, and end in errors that name the file on anything else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.readers.target import LARGEST_SEED
from tests.readers.targets import TARGETS

TRIES = 10


def mutated(seed: bytes, draw: random.Random) -> bytes:
    """A few bytes of it changed, inserted, removed, or moved from elsewhere."""
    made = bytearray(seed)
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(made) + 1)
        length = draw.choice((1, 1, 2, 8, 100))
        other = draw.randrange(len(made) + 1)
        new = draw.choice((draw.randbytes(length), made[other : other + length], b"", b"9" * length, b"\xff" * length))
        made[place : place + (length if draw.random() < 0.7 else 0)] = new
    return bytes(made)


@pytest.mark.parametrize("name", TARGETS)
def test_what_strangers_wrote_is_read_or_told(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    with TARGETS[name].opened(tmp_path) as (seeds, attempt):
        for seed in seeds:
            assert attempt(seed) and len(seed) <= LARGEST_SEED
        for _ in range(TRIES):
            attempt(mutated(draw.choice(seeds), draw))
