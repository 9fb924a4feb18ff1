"""Constants of the CUDA library that calls are cut up by, and names of the numbers that its kernels take."""

from __future__ import annotations

from array import array
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from crossret_kernels.operations import define


def constant(name: str) -> int:
    """One of the kernels' sizes."""
    return constants(name)[0]


@cache
def constants(name: str) -> tuple[int, ...]:
    """Constants of every kind that the library lists."""
    return tuple(int(value) for value in _declared()[name])


@lru_cache(1024)  # a tensor of some numbers takes the host as long as a launch
def numbers(launch: str, real: bool = False, /, **values: float) -> Tensor:
    """The numbers that a launch takes, by their names, as it takes them: int64 or float64 on the CPU.

    Raises ValueError where one is missing or unknown.
    """
    names = _declared()[launch]
    try:
        given: Any = array("d" if real else "q", map(values.__getitem__, names))
    except KeyError:
        given = ()
    if not len(given) == len(names) == len(values):
        raise ValueError(f"{launch} takes {', '.join(names)}, not {', '.join(values)}")
    return torch.frombuffer(given, dtype=torch.float64 if real else torch.int64)  # in a tenth of the time of a list


@cache
def _declared() -> dict[str, list[str]]:
    lines = torch.ops.crossret.attention_told().splitlines()
    return {name: words for name, *words in map(str.split, lines)}


_PARTS = (
    "Tensor contexts, Tensor queries, Tensor of_contexts, Tensor of_queries, Tensor? context_jobs, Tensor? query_jobs"
)
_SIDE = "Tensor? extents, Tensor? places, Tensor? starts, Tensor part, Tensor choices"

# [rows of queries, of contexts, items of queries, of contexts] that jobs have at most, beside items of contexts of up
# to `longest` rows.
attention_job_sizes = define(
    "attention_job_sizes",
    (),
    "int packed, bool softmax, int longest, bool gradients, int most_shared",
    made="int[]",
)
# Most rows of an item of contexts that can be attended to.
most_attended_rows = define("most_attended_rows", (), "bool gradients, int most_shared", made="int")
# Rows of a part, and behind them all that is told of them, of contexts their Gram matrices.
pack_side = define("pack_side_cuda", (), f"Tensor features, {_SIDE}, bool contexts", made="Tensor")
# Scores of all pairs of two packed parts, (contexts, queries), or of listed ones: (context, query) of each, and their
# places by contexts.
attend = define(
    "attend_cuda", (), f"Tensor(a!) scores, {_PARTS}, Tensor choices, Tensor? pairs, Tensor? order", made="()"
)
# ∂L/∂S (rows of queries, rows of contexts and padding), of each row of queries itself, of Gram matrices.
attention_gradients = define(
    "attention_gradients_cuda", (), f"Tensor grad_scores, {_PARTS}, Tensor choices", made="(Tensor, Tensor, Tensor)"
)
# Gradients of features from the sums of their packed rows, which Gram matrices' are added to.
finish_gradients = define(
    "finish_gradients_cuda",
    (),
    f"Tensor(a!) sums, Tensor packed, Tensor(b!) out, {_SIDE}, Tensor? own, Tensor? of_grams",
    made="()",
)
