"""What is measured on a GPU, and the ratio to the floor that is wanted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.cases import SETTINGS, WHOLE_TEST_SET, Case
from benchmarks.gpu.implementations import CHUNKED, COMPILED, LOOP, PEERS
from benchmarks.gpu.results import FUSED

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}
SAMPLED_CAPTIONS = 256  # of larger cases, where implementations are sampled
STEP_PRODUCTS = 4  # scores, scores again with their gradients, one product for either side's features


SLOWER = {LOOP: 200.0, COMPILED: 5.0}


@dataclass(frozen=True)
class GpuCase:
    """A case at a precision ("tf32": float32 features, TF32 products) by several implementations.

    Attributes:
        setting: of `benchmarks.cases.SETTINGS`; None for t2i Sum-Max.
        training: with the hardest-negative loss and both sides' gradients.
        target: of triton's ratio to the floor, or to that many floors.
    """

    setting: str | None
    case: Case
    precision: str
    implementations: tuple[str, ...]
    training: bool = False
    target: float | None = None

    @property
    def operation(self) -> str:
        return f"{self.setting or 'Sum-Max'} {'training step' if self.training else 'forward'}"

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.setting is None else SETTINGS[self.setting]

    @property
    def products(self) -> int:
        return STEP_PRODUCTS if self.training else 1

    def slower(self, name: str) -> float | None:
        """How many times as slow as triton this implementation is wanted to be."""
        if name in PEERS:
            return 1.0
        return SLOWER.get(name) if self.case == WHOLE_TEST_SET else None


def query_against(documents: int, rows: tuple[int, int], queries: int = 1, words: int = 32) -> Case:
    return Case(documents, queries, dim=128, regions=rows, words=(words, words))


LATE_INTERACTION = (
    query_against(1000, (128, 300)),
    query_against(1000, (300, 300)),
    query_against(10_000, (300, 300)),
    query_against(1000, (1030, 1030)),  # pages
)
PATCHES = Case(512, 512, regions=(197, 197), words=(20, 77))  # of a vision transformer, by tokens of its text encoder
BOTH_WAYS = tuple(SETTINGS)
CASES = [
    *(GpuCase(way, WHOLE_TEST_SET, "bfloat16", (FUSED, LOOP, COMPILED), target=1.35) for way in BOTH_WAYS),
    *(GpuCase(way, WHOLE_TEST_SET, name, (FUSED,), target=1.4) for name in ("tf32", "float32") for way in BOTH_WAYS),
    *(GpuCase(way, WHOLE_TEST_SET, "float16", (FUSED,)) for way in BOTH_WAYS),
    *(
        GpuCase(way, Case(128, 128), name, (FUSED, LOOP, COMPILED))
        for name in ("bfloat16", "float32")
        for way in BOTH_WAYS
    ),
    *(
        GpuCase(way, Case(size, size), "bfloat16", (FUSED,), training=True, target=1.6)
        for size in (128, 512)
        for way in BOTH_WAYS
    ),
    *(GpuCase(way, PATCHES, name, (FUSED, CHUNKED)) for name in ("bfloat16", "float32") for way in BOTH_WAYS),
    *(GpuCase(way, PATCHES, "bfloat16", (FUSED, CHUNKED), training=True) for way in BOTH_WAYS),
    *(GpuCase(None, case, "bfloat16", (FUSED, COMPILED, *PEERS)) for case in LATE_INTERACTION),
    GpuCase(None, query_against(32, (80, 80), 32), "bfloat16", (FUSED, COMPILED, *PEERS), training=True),
]
