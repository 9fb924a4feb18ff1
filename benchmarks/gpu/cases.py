"""What is measured on a GPU, and the ratios to the floor that are wanted of it."""

from __future__ import annotations

from benchmarks.cases import SETTINGS, WHOLE_TEST_SET, Case
from benchmarks.gpu.implementations import CHUNKED, COMPILED, LOOP, PEERS
from benchmarks.gpu.lists import ListCase
from benchmarks.gpu.losses import LossCase
from benchmarks.gpu.merges import MergeCase
from benchmarks.gpu.results import FUSED
from benchmarks.gpu.scores import ScoreCase
from benchmarks.gpu.work import GpuCase


def query_against(documents: int, rows: tuple[int, int], queries: int = 1, words: int = 32) -> Case:
    return Case(documents, queries, dim=128, regions=rows, words=(words, words))


ONE_QUERY = query_against(1000, (300, 300))
LATE_INTERACTION = (
    query_against(1000, (128, 300)),
    query_against(10_000, (300, 300)),
    query_against(1000, (1030, 1030)),  # pages
)
PATCHES = Case(512, 512, regions=(197, 197), words=(20, 77))  # of a vision transformer, by tokens of its text encoder
BOTH_WAYS = tuple(SETTINGS)
RIVALS = (*FUSED, COMPILED, *PEERS)
CASES: list[GpuCase] = [
    *(
        ScoreCase(way, WHOLE_TEST_SET, "bfloat16", (*FUSED, LOOP, COMPILED), targets={"triton": 1.35, "cuda": 1.7})
        for way in BOTH_WAYS
    ),
    *(
        ScoreCase(way, WHOLE_TEST_SET, name, FUSED, targets={"triton": 1.4})
        for name in ("tf32", "float32")
        for way in BOTH_WAYS
    ),
    *(ScoreCase(way, WHOLE_TEST_SET, "float16", FUSED) for way in BOTH_WAYS),
    *(
        ScoreCase(way, Case(128, 128), name, (*FUSED, LOOP, COMPILED))
        for name in ("bfloat16", "float32")
        for way in BOTH_WAYS
    ),
    *(
        ScoreCase(way, Case(size, size), "bfloat16", FUSED, training=True, targets={"triton": 1.6})
        for size in (128, 512)
        for way in BOTH_WAYS
    ),
    *(ScoreCase(way, PATCHES, name, (*FUSED, CHUNKED)) for name in ("bfloat16", "float32") for way in BOTH_WAYS),
    *(ScoreCase(way, PATCHES, "bfloat16", (*FUSED, CHUNKED), training=True) for way in BOTH_WAYS),
    ScoreCase(None, ONE_QUERY, "bfloat16", RIVALS, targets={"cuda": 1.5}, read=True),
    *(ScoreCase(None, case, "bfloat16", RIVALS, read=True) for case in LATE_INTERACTION),
    ScoreCase(None, query_against(32, (80, 80), 32), "bfloat16", RIVALS, training=True),
    *(ListCase(way, WHOLE_TEST_SET, "bfloat16", 8, FUSED) for way in BOTH_WAYS),
    *(
        ListCase(way, WHOLE_TEST_SET, "bfloat16", per_image, FUSED, targets={"cuda": 1.5})
        for per_image in (64, 512)
        for way in BOTH_WAYS
    ),
    *(LossCase(negatives, 128, (*FUSED, CHUNKED)) for negatives in ("hardest", "sum", "softmax")),
    *(
        LossCase(negatives, 8192, (*FUSED, CHUNKED), targets={"cuda": 1.3})
        for negatives in ("hardest", "sum", "softmax")
    ),
    MergeCase(1448, 1448, 10),  # blocks of a search, and of one of few queries
    MergeCase(20, 100_000, 1000),
]
