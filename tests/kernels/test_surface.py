"""What all public functions have in common: which arguments go by position, and what autocast does to each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import crossret_kernels
from crossret_kernels import late_interaction
from tests.kernels.gated import gated_parameters
from tests.kernels.heterogeneous import make_layers

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for module in (crossret_kernels, late_interaction)
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and not name.startswith("_")
    and (function.__module__ == module.__name__ or name in crossret_kernels.__all__)
}
LENGTHS = ["region_lengths", "word_lengths"]
OF_LATE_INTERACTION = ("maxsim", "maxsim_pairs", "maxsim_both_ways", "retrieve")
POSITIONAL = {
    "attention_pool": ["values", "logits", "lengths"],
    "attention_pool_weights": ["values", "logits", "lengths"],
    "triplet_loss": ["scores"],
    "scan_factors": ["features", "lengths"],
    "pairwise_scores": ["regions", "words", "scorer", *LENGTHS],
    **{name: ["queries", "documents", "query_lengths", "document_lengths"] for name in OF_LATE_INTERACTION},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_scored_and_its_lengths_go_by_position(name: str) -> None:
    """And nothing else, in this order."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == POSITIONAL.get(name, ["regions", "words", *LENGTHS])
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters if p.name not in by_position)


GENERATOR = torch.Generator().manual_seed(0)
SIDES = [torch.randn(n, 3, 16, generator=GENERATOR) for n in (2, 3)]
CONTEXTS = [torch.randn(n, 2, 16, generator=GENERATOR) for n in (2, 3)]
PARAMETERS = gated_parameters(16, 16, 6, 5, 4, GENERATOR)
LAYERS = make_layers(1, 16)
PAIRS = torch.tensor([[0, 0], [1, 2]])


def _scorer(regions: Tensor, _v: Tensor, words: Tensor, _e: Tensor) -> Tensor:
    return (regions @ words.mT).amax(1).sum(1)


def call(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What the function returns for features of a dtype; parameters go with float32 and with float64."""
    sides = [side.to(dtype) for side in SIDES]
    wide = torch.promote_types(dtype, torch.float32)
    options: dict[str, Any] = {}
    if name == "triplet_loss":
        sides = [sides[0][0, :, :3] + sides[1][0, :, :3]]
    elif name == "scan_factors":  # which are the CPU kernels': no float64
        sides = SIDES[:1]
    elif name.startswith("attention_pool"):
        sides[1] = sides[0][..., :2]
    elif name.startswith("gated"):
        contexts = [context.to(wide) for context in CONTEXTS]
        options = {"region_contexts": contexts[0], "word_contexts": contexts[1], "parameters": PARAMETERS.to(wide)}
    elif name.startswith("heterogeneous"):
        options = {"layers": [layer.to(wide) for layer in LAYERS], "heads": 2}
    if "topk" in name or name == "retrieve":
        options["k"] = 2
    if name in ("scan_attention", "maxsim_pairs", "gated_attention_weights", "heterogeneous_attention_weights"):
        options["pairs"] = PAIRS
    if name == "pairwise_scores":
        options["scorer"] = _scorer
    made = FUNCTIONS[name](*sides, **options)
    return made if isinstance(made, tuple) else (made,)


def rows() -> dict[str, str]:
    """Of the table in docs/kernels.md: what it says first of each function."""
    text = Path(__file__).parents[2].joinpath("docs", "kernels.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.*?) \| \*\*(.*?)\*\*", text.partition("## 4. ")[2], re.MULTILINE)
    names = [(name, said) for functions, said in table for name in re.findall(r"`(\w+)`", functions)]
    return {name: said for name, said in names if name != "late_interaction"}


ROWS = rows()


def test_the_table_of_autocast_names_every_function() -> None:
    assert set(ROWS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_does_what_its_table_says(name: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        ours, wide = call(name, torch.float32), call(name, torch.float64)
    plain = call(name, torch.float32)
    assert all(made.dtype in (torch.float32, torch.int64) for made in ours)
    assert all(torch.equal(one, other) for one, other in zip(wide, call(name, torch.float64), strict=True))
    if ROWS[name] == "features cast":
        expected = call(name, torch.bfloat16)
        assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))
        assert not torch.equal(ours[0], plain[0])
    elif ROWS[name] == "as their operations":
        assert not torch.equal(ours[0], plain[0])
        for one, other in zip(ours, plain, strict=True):
            unit = torch.finfo(torch.bfloat16).eps * max(1.0, float(other.abs().max()))
            torch.testing.assert_close(one, other, rtol=0, atol=8 * unit)
    else:
        assert ROWS[name] == "nothing"
        assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


def test_autocast_holds_for_a_block_that_is_made_again() -> None:
    """In a backward pass outside it, too."""
    dtypes: list[torch.dtype] = []

    def scorer(*block: Tensor) -> Tensor:
        dtypes.append((block[0] @ block[2].mT).dtype)
        return _scorer(*block)

    leaf = SIDES[0].clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        scores = crossret_kernels.pairwise_scores(leaf, SIDES[1], scorer)
    scores.sum().backward()
    assert dtypes == [torch.bfloat16] * 2
