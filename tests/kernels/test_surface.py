"""What all public functions have in common: arguments by position, autocast, gradients, torch.func, torch.compile."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import crossret_kernels
from crossret_kernels import GatedAttention, HeterogeneousLayer, late_interaction
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for module in (crossret_kernels, late_interaction)
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and not name.startswith("_")
    and (function.__module__ == module.__name__ or name in crossret_kernels.__all__)
}
LENGTHS = ["region_lengths", "word_lengths"]
OF_LATE_INTERACTION = ("maxsim", "maxsim_pairs", "maxsim_both_ways", "explain", "retrieve")
POSITIONAL = {
    "attention_pool": ["values", "logits", "lengths"],
    "attention_pool_weights": ["values", "logits", "lengths"],
    "triplet_loss": ["scores"],
    "infonce_loss": ["scores", "scale"],
    "sigmoid_loss": ["scores", "scale", "bias"],
    "scan_factors": ["features", "lengths"],
    "pairwise_scores": ["regions", "words", "scorer", *LENGTHS],
    "scan_attend_scores": ["regions", "words", "scorer", *LENGTHS],
    **{name: ["queries", "documents", "query_lengths", "document_lengths"] for name in OF_LATE_INTERACTION},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_scored_and_its_lengths_go_by_position(name: str) -> None:
    """And nothing else, in this order."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == POSITIONAL.get(name, ["regions", "words", *LENGTHS])
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters if p.name not in by_position)


GENERATOR = torch.Generator().manual_seed(0)
SIDES = [torch.randn(n, 3, 16, generator=GENERATOR) for n in (2, 3)]
CONTEXTS = [torch.randn(n, 2, 16, generator=GENERATOR) for n in (2, 3)]
PARAMETERS = gated_parameters(16, 16, 6, 5, 4, GENERATOR)
LAYERS = make_layers(1, 16)
LOSSES: dict[str, tuple[float, ...]] = {"triplet_loss": (), "infonce_loss": (2.0,), "sigmoid_loss": (2.0, -1.0)}
PAIRS = torch.tensor([[0, 0], [1, 2]])


OF_PAIRS = (
    "scan_attend",
    "scan_attention",
    "scan_contributions",
    "explain",
    "maxsim_pairs",
    "gated_attention_weights",
    "heterogeneous_attention_weights",
)
EXPLAINING = ("explain", "scan_contributions")
# Those that a gradient goes through; of these what takes lists of pairs, too, and need not.
DIFFERENTIABLE = [
    name for name in FUNCTIONS if "topk" not in name and name not in (*EXPLAINING, "retrieve", "scan_factors")
]
LISTABLE = [name for name in DIFFERENTIABLE if "pairs" in inspect.signature(FUNCTIONS[name]).parameters]
differentiable = pytest.mark.parametrize(
    ("name", "pairs"),
    [*((name, None) for name in DIFFERENTIABLE), *((name, PAIRS) for name in LISTABLE if name not in OF_PAIRS)],
    ids=lambda value: "listed" if isinstance(value, Tensor) else value,
)


def _scorer(regions: Tensor, _v: Tensor, words: Tensor, _e: Tensor) -> Tensor:
    return (regions @ words.mT).amax(1).sum(1)


def _attended_scorer(made: crossret_kernels.ScanAttended, queries: Tensor, mask: Tensor, _pairs: Tensor) -> Tensor:
    return ((made.attended - queries) * mask[..., None]).square().sum((1, 2))


def prepared(name: str, dtype: torch.dtype) -> tuple[list[Tensor], Callable[..., tuple[Tensor, ...]]]:
    """Features, and parameters where there are some; and the function of these, of all pairs where it takes all.

    Parameters go with float32 and with float64.
    """
    sides = [side.to(dtype) for side in SIDES]
    wide = torch.promote_types(dtype, torch.float32)
    options: dict[str, Any] = {}
    parameters: list[Tensor] = []
    if name in LOSSES:
        sides = [sides[0][0, :, :3] + sides[1][0, :, :3]]
        sides += [torch.tensor(number, dtype=wide) for number in LOSSES[name]]
    elif name == "scan_factors":  # which are the CPU kernels': no float64
        sides = SIDES[:1]
    elif name.startswith("attention_pool"):
        sides[1] = sides[0][..., :2].clone()
    elif name.startswith("gated"):
        parameters = [*(context.to(wide) for context in CONTEXTS), *PARAMETERS.to(wide).flat()]
    elif name.startswith("heterogeneous"):
        parameters = [x for layer in LAYERS for x in layer.to(wide)]
        options["heads"] = 2
    if "topk" in name or name == "retrieve":
        options["k"] = 2
    if name in OF_PAIRS:
        options["pairs"] = PAIRS
    if name == "pairwise_scores":
        options["scorer"] = _scorer
    if name == "scan_attend_scores":
        options["scorer"] = _attended_scorer

    def call(*given: Tensor, **more: Any) -> tuple[Tensor, ...]:
        own: dict[str, Any] = options | more
        features, others = given[: len(sides)], given[len(sides) :]
        if name.startswith("gated"):
            own |= {"region_contexts": others[0], "word_contexts": others[1]}
            own["parameters"] = GatedAttention.of(tuple(others[2:]))
        if name.startswith("heterogeneous"):
            own["layers"] = [HeterogeneousLayer(*others)]
        made = FUNCTIONS[name](*features, **own)
        return made if isinstance(made, tuple) else (made,)

    return [*sides, *parameters], call


def call(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What the function returns for features of a dtype."""
    given, function = prepared(name, dtype)
    return function(*given)


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
    documented = (torch.float32, torch.int64, *([torch.float64] if name in EXPLAINING else []))
    assert all(made.dtype in documented for made in ours)
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


# --- gradients and transforms of all, in PyTorch operations and by kernels


def options_of(pairs: Tensor | None) -> dict[str, Any]:
    return {} if pairs is None else {"pairs": pairs}


def weighted(outputs: tuple[Tensor, ...]) -> Tensor:
    """A sum in which every number that a gradient goes through counts otherwise."""
    floating = [x for x in outputs if x.is_floating_point()]
    return torch.stack([(x * torch.linspace(1, 2, x.numel()).to(x).view_as(x)).sum() for x in floating]).sum()


@pytest.mark.parametrize("backend", ["torch", "reference"])
@differentiable
def test_gradients_are_derivatives(name: str, pairs: Tensor | None, backend: str) -> None:
    """Of "torch" second ones of features too."""
    given, function = prepared(name, torch.float64)
    options = options_of(pairs) | ({} if name == "pairwise_scores" else {"backend": backend})
    leaves = [x.clone().requires_grad_() for x in given]

    def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x for x in function(*tensors, **options) if x.is_floating_point())

    assert gradcheck(outputs, leaves, fast_mode=True)
    if backend == "torch" and name != "pairwise_scores":
        twice, fixed = leaves[:2], [x.detach() for x in leaves[2:]]
        assert gradgradcheck(lambda *x: outputs(*x, *fixed), twice, fast_mode=True)


@differentiable
def test_torch_func_has_the_gradients_of_autograd(name: str, pairs: Tensor | None) -> None:
    given, function = prepared(name, torch.float32)

    def loss(*tensors: Tensor) -> Tensor:
        return weighted(function(*tensors, **options_of(pairs)))

    leaves = [x.clone().requires_grad_() for x in given]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    for ours, theirs in zip(torch.func.grad(loss, argnums=tuple(range(len(given))))(*given), expected, strict=True):
        size = max(1.0, float(theirs.abs().max()))  # some go by kernels here and by PyTorch operations there
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-5 * size)


@differentiable
def test_whole_graphs_compile(name: str, pairs: Tensor | None) -> None:
    """With their gradients; what operations are traced as, of any size, is in test_registration.py."""
    given, function = prepared(name, torch.float32)

    def scored(*tensors: Tensor) -> tuple[Tensor, ...]:
        return function(*tensors, **options_of(pairs))

    torch.compiler.reset()
    results = []
    for each in (torch.compile(scored, fullgraph=True, backend="eager"), scored):
        leaves = [x.clone().requires_grad_() for x in given]
        made = each(*leaves)
        results.append((*made, *torch.autograd.grad(weighted(made), leaves)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("layout", ["packed", "list"])
@pytest.mark.parametrize("name", ["attention_pool", "scan_attend", "gated_attention_scores", "heterogeneous_scores"])
def test_compiled_calls_refuse_what_has_no_width(name: str, layout: str) -> None:
    given, function = prepared(name, torch.float32)
    offsets = torch.arange(len(given[0]) + 1) * given[0].size(1)
    changed: list[Any] = [*given]
    changed[0] = list(given[0]) if layout == "list" else (given[0].flatten(0, 1), offsets)
    if name == "attention_pool":
        changed[1] = list(given[1]) if layout == "list" else given[1].flatten(0, 1)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"takes padded (values|features) inside"):
        torch.compile(function, fullgraph=True, backend="eager")(*changed)


@pytest.mark.parametrize("name", ["gated_attention_scores", "heterogeneous_scores"])
def test_features_are_let_go_of_with_the_graph(name: str) -> None:
    """Though scores, and what they remember of their call, stay."""
    given, function = prepared(name, torch.float32)
    array = given[0].flatten(0, 1).numpy().copy()
    remembered, packed = weakref.ref(array), (torch.from_numpy(array), torch.tensor([0, 3, 6]))
    scores = function(packed, given[1].requires_grad_(), *given[2:])[0]
    scores.sum().backward()
    del array, packed
    assert remembered() is None
    assert scores.requires_grad


@pytest.mark.parametrize("name", [name for name in OF_PAIRS if name not in ("explain", "maxsim_pairs")])
def test_weights_of_all_pairs_are_not_kept(name: str) -> None:
    given, function = prepared(name, torch.float32)
    with pytest.raises(ValueError, match=f"{name} takes pairs or candidates"):
        function(*given, pairs=None)
