"""Cases measured on a GPU, and their targets as ratios to the floor."""

from __future__ import annotations

from benchmarks.cases import SETTINGS, WHOLE_TEST_SET, Case
from benchmarks.gpu.checks import Check
from benchmarks.gpu.implementations import CHUNKED, COMPILED, LOOP, PEERS
from benchmarks.gpu.lists import ListCase
from benchmarks.gpu.losses import LossCase
from benchmarks.gpu.others import OtherCase
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
PATCHES = Case(512, 512, regions=(197, 197), words=(20, 77))  # a vision transformer's, by tokens of its text encoder
BOTH_WAYS = tuple(SETTINGS)
TRITON = ("triton",)
TARGETS_1000 = {"t2i LSE": 25 / 6.0, "i2t AVG": 30 / 6.0}
TOKENS = [  # queries and documents, and their tokens, D: the best printed by others
    (Case(128, 128, 128, (300, 300), (32, 32)), False),
    (Case(512, 512, 128, (180, 180), (32, 32)), False),
    (Case(128, 128, 512, (128, 128), (128, 128)), False),
    (Case(1000, 1, 128, (1024, 1024), (1024, 1024)), False),
    (Case(256, 256, 128, (180, 180), (32, 32)), True),
    (Case(1024, 1024, 128, (180, 180), (32, 32)), True),
    (Case(32, 32, 128, (1024, 1024), (1024, 1024)), True),
]
OTHERS = [
    OtherCase(Check(operation, (36, 20, 1024), (option,), "bfloat16", "torch", items=(128, 128)), training, backends)
    for operation, option, backends in (
        ("gated_attention_scores", ("alpha", 0.9), ("torch",)),
        ("heterogeneous_scores", ("heads", 8), ("triton", "torch")),  # a kernel stays where steps are faster by it
        ("scan_attend", ("direction", "t2i"), ("triton", "torch")),
    )
    for training in (False, True)
]
FIGURES: list[GpuCase] = [  # our own kernels' figures: the dearest first
    *(ScoreCase(way, WHOLE_TEST_SET, "bfloat16", FUSED, targets={"triton": TARGETS_1000[way]}) for way in BOTH_WAYS),
    *(ScoreCase(way, Case(size, size), "bfloat16", FUSED, training=True) for size in (128, 512) for way in BOTH_WAYS),
    *(ScoreCase(way, Case(128, 128), "bfloat16", FUSED) for way in BOTH_WAYS),
    ScoreCase(None, ONE_QUERY, "bfloat16", TRITON, read=True),
    *(ScoreCase(None, case, "bfloat16", TRITON, read=True) for case in LATE_INTERACTION),
    *(LossCase(negatives, 8192, TRITON) for negatives in ("hardest", "sum", "softmax")),
    *(ScoreCase(None, case, "bfloat16", TRITON, training) for case, training in TOKENS),
    *OTHERS,
    *(ScoreCase(way, WHOLE_TEST_SET, "float32", TRITON) for way in BOTH_WAYS),
    *(ScoreCase(way, WHOLE_TEST_SET, name, FUSED) for name in ("tf32", "float16") for way in BOTH_WAYS),
    *(ScoreCase(way, Case(128, 128), "float32", TRITON, training) for training in (False, True) for way in BOTH_WAYS),
    *(ScoreCase(way, PATCHES, "float32", TRITON) for way in BOTH_WAYS),
    *(ScoreCase(way, PATCHES, "bfloat16", FUSED, training) for training in (False, True) for way in BOTH_WAYS),
    *(ListCase(way, WHOLE_TEST_SET, "bfloat16", per_image, FUSED) for per_image in (8, 64, 512) for way in BOTH_WAYS),
    *(LossCase(negatives, 128, TRITON) for negatives in ("hardest", "sum", "softmax")),
]
RIVALS: list[GpuCase] = [  # baselines: other packages, loops and compiled code
    *(ScoreCase(None, case, "bfloat16", tuple(PEERS), training) for case, training in TOKENS),
    *(ScoreCase(None, case, "bfloat16", tuple(PEERS), read=True) for case in (ONE_QUERY, *LATE_INTERACTION)),
    *(ScoreCase(way, WHOLE_TEST_SET, "bfloat16", (LOOP,)) for way in BOTH_WAYS),
    *(ScoreCase(way, Case(128, 128), "bfloat16", (LOOP, COMPILED)) for way in BOTH_WAYS),
    *(ScoreCase(way, WHOLE_TEST_SET, "bfloat16", (COMPILED,)) for way in BOTH_WAYS),
    *(ScoreCase(way, PATCHES, "bfloat16", (CHUNKED,)) for way in BOTH_WAYS),
]
