"""Registration: the operations inside autograd, autocast, torch.compile and torch.func, and called directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager

from crossret_kernels import MaxSimOptions, ScanOptions, maxsim_scores, scan_scores

FUNCTIONS = (scan_scores, maxsim_scores)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "scan_scores": (None, False, *ScanOptions(normalize=True, pooling="lse").codes),
    "maxsim_scores": (None, False, *MaxSimOptions(direction="i2t").codes, False),
}

functions = pytest.mark.parametrize("function", FUNCTIONS)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- the operations themselves


def operands(name: str, dtype: torch.dtype = torch.float32, pairs: bool = False) -> dict[str, Any]:
    """Arguments of an operation, by name: three padded images, two packed captions."""
    arguments: dict[str, Any] = {
        "regions": randn(3, 4, 8, dtype=dtype),
        "region_offsets": None,
        "region_lengths": torch.tensor([3, 4, 1]),
        "region_mask": None,
        "words": randn(13, 8, seed=1, dtype=dtype),
        "word_offsets": torch.tensor([0, 6, 13]),
        "word_lengths": None,
        "word_mask": None,
        "pairs": torch.tensor([[0, 1], [2, 0], [0, 1], [1, 1]]) if pairs else None,
    }
    if name.endswith("_backward"):
        kept = {"kept": torch.empty(0)} if name.startswith("maxsim") else {}
        return {"grad_scores": randn(4, seed=2) if pairs else randn(3, 2, seed=2), **kept, **arguments}
    return arguments


def call(name: str, arguments: dict[str, Any]) -> Any:
    needed = (True, True) if name.endswith("_backward") else ()
    return getattr(torch.ops.crossret, name)(*arguments.values(), *OPTIONS[name.removesuffix("_backward")], *needed)


OPERATIONS = [f"{name}{suffix}" for name in OPTIONS for suffix in ("", "_backward")]
operations = pytest.mark.parametrize("name", OPERATIONS)


@operations
@pytest.mark.parametrize(
    ("dtype", "pairs"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True), (torch.float16, False)],
)
def test_opcheck(name: str, dtype: torch.dtype, pairs: bool) -> None:
    arguments = operands(name, dtype, pairs)
    options: tuple[Any, ...] = OPTIONS[name.removesuffix("_backward")]
    if name.endswith("_backward"):
        options = (*options, True, pairs)
    else:
        arguments["regions"].requires_grad_()
        arguments["words"].requires_grad_()
    torch.library.opcheck(getattr(torch.ops.crossret, name).default, (*arguments.values(), *options))


@operations
@pytest.mark.parametrize("empty_score", [None, -0.5])
def test_opcheck_of_masks(name: str, empty_score: float | None) -> None:
    options: tuple[Any, ...] = (empty_score, *OPTIONS[name.removesuffix("_backward")][1:])
    mask = torch.tensor([[True, False, True, True], [False] * 3 + [True], [empty_score is None] * 4])
    arguments = operands(name) | {"region_lengths": None, "region_mask": mask}
    if name.endswith("_backward"):
        options = (*options, True, True)
    else:
        arguments["regions"].requires_grad_()
    torch.library.opcheck(getattr(torch.ops.crossret, name).default, (*arguments.values(), *options))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("width", [None, 15])
def test_opcheck_of_scores_and_argmax(pairs: bool, width: int | None) -> None:
    arguments = operands("maxsim_argmax", pairs=pairs)
    torch.library.opcheck(
        torch.ops.crossret.maxsim_argmax.default, (*arguments.values(), *OPTIONS["maxsim_scores"][:-1], width)
    )


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("options", [{}, {"pooling": "topk", "top": 2}, {"context_pooling": "lse"}], ids=str)
def test_opcheck_of_both_directions(options: dict[str, Any], pairs: bool) -> None:
    arguments, own = operands("maxsim_both", pairs=pairs), (None, False, *MaxSimOptions(**options).codes)
    grads = [randn(4, seed=seed) if pairs else randn(3, 2, seed=seed) for seed in range(2)]
    torch.library.opcheck(
        torch.ops.crossret.maxsim_both_backward.default, (*grads, *arguments.values(), *own, True, False)
    )
    for side in ("regions", "words"):
        arguments[side].requires_grad_()
    torch.library.opcheck(torch.ops.crossret.maxsim_both.default, (*arguments.values(), *own))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_opcheck_of_attention_in_both_directions(direction: str, pairs: bool) -> None:
    arguments = operands("scan_both", pairs=pairs)
    own = (None, False, *ScanOptions(direction=direction, normalize=True).codes, 4.0)
    grads = randn(4, seed=2) if pairs else randn(3, 2, seed=2)
    torch.library.opcheck(
        torch.ops.crossret.scan_both_backward.default, (grads, *arguments.values(), *own, True, False)
    )
    for side in ("regions", "words"):
        arguments[side].requires_grad_()
    torch.library.opcheck(torch.ops.crossret.scan_both.default, (*arguments.values(), *own))


@pytest.mark.parametrize("attended", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("places", [(7, 4), (13, 9)], ids=["as many as rows", "more"])
def test_opcheck_of_attended_vectors(attended: bool, dtype: torch.dtype, places: tuple[int, int]) -> None:
    arguments, options = operands("scan_attend", dtype, pairs=True), (*OPTIONS["scan_scores"], *places, attended)
    shapes = (4,), (4, places[0], 8 if attended else 0), (4, *places), (4, places[0])
    grads = [randn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    torch.library.opcheck(
        torch.ops.crossret.scan_attend_backward.default, (*grads, *arguments.values(), *options, True, False)
    )
    for side in ("regions", "words"):
        arguments[side].requires_grad_()
    torch.library.opcheck(torch.ops.crossret.scan_attend.default, (*arguments.values(), *options))


@pytest.mark.parametrize("places", [(6, 4), (7, 3)])
def test_fewer_places_than_rows_are_refused(places: tuple[int, int]) -> None:
    with pytest.raises(RuntimeError, match="fewer places than an item has rows"):
        arguments = operands("scan_attend", pairs=True)
        torch.ops.crossret.scan_attend(*arguments.values(), *OPTIONS["scan_scores"], *places, True)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("several", [False, True], ids=["with lengths", "of items"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_of_lists(name: str, several: bool, dtype: torch.dtype) -> None:
    own = operands(name, dtype, pairs=several)
    lengths = None if several else own["region_lengths"]
    regions = [item[:n] for item, n in zip(own["regions"], (3, 4, 1), strict=True)] if several else [own["regions"]]
    words = [own["words"][None, :7].repeat(2, 1, 1)], None, None, torch.ones(2, 7, dtype=torch.bool)
    operation = getattr(torch.ops.crossret, f"{name}_listed").default
    options = OPTIONS[name][: -1 if name.startswith("maxsim") else None]
    torch.library.opcheck(operation, (regions, None, lengths, None, *words, own["pairs"], *options))


FAR = 2**63 - 1
BAD_OPERANDS = {
    "start before the rows": ("word_offsets", torch.tensor([-1, 6, 13]), "words: item 0 has rows -1 to 6"),
    "end past the rows": ("word_offsets", torch.tensor([0, 6, 14]), "words: item 1 has rows 6 to 14"),
    "end far past the rows": ("word_offsets", torch.tensor([0, 6, FAR]), "words: item 1"),
    "packed empty item": ("word_offsets", torch.tensor([0, 6, 6]), "words: item 1 has length 0"),
    "falling offsets": ("word_offsets", torch.tensor([0, 7, 2]), "words: item 1 has rows 7 to 2"),
    "far falling offsets": ("word_offsets", torch.tensor([0, FAR, -FAR]), "words: item 0"),
    "no offsets": ("word_offsets", torch.tensor([], dtype=torch.int64), "words take offsets of n"),
    "length past the rows": ("region_lengths", torch.tensor([3, 5, 1]), "regions: item 1 has length 5"),
    "length far past the rows": ("region_lengths", torch.tensor([FAR, 4, 1]), "regions: item 0"),
    "empty item": ("region_lengths", torch.tensor([3, 0, 1]), "regions: item 1 has length 0"),
    "negative length": ("region_lengths", torch.tensor([-3, 4, 1]), "regions: item 0 has length -3"),
    "a length too few": ("region_lengths", torch.tensor([3, 4]), "regions: one length for each item"),
    "int32 offsets": ("word_offsets", torch.tensor([0, 6, 13], dtype=torch.int32), "words must be a contiguous 1-D"),
    "two-dimensional lengths": ("region_lengths", torch.tensor([[3, 4]]), "regions must be a contiguous 1-D int64"),
    "pair without image": ("pairs", torch.tensor([[0, 1], [3, 0], [0, 0], [0, 0]]), r"pairs\[1\] names image 3"),
    "pair without caption": ("pairs", torch.tensor([[0, 2], [0, 0], [0, 0], [0, 0]]), r"pairs\[0\] names caption 2"),
    "negative pair": ("pairs", torch.tensor([[0, 1], [0, 0], [0, 0], [-1, 0]]), r"pairs\[3\] names image -1"),
    "flat pairs": ("pairs", torch.tensor([0, 0, 0, 0]), "pairs must be a"),
    "int32 pairs": ("pairs", torch.zeros(4, 2, dtype=torch.int32), "pairs must be a"),
    "other D": ("words", randn(13, 4), "regions have D = 8 but words have D = 4"),
    "other dtype": ("words", randn(13, 8, dtype=torch.bfloat16), "regions and words must have one dtype"),
    "float64": ("regions", randn(3, 4, 8, dtype=torch.float64), "regions must be float32, bfloat16 or float16"),
    "integers": ("words", torch.zeros(13, 8, dtype=torch.int64), "words must be float32, bfloat16 or float16"),
    "rows without offsets": ("regions", randn(12, 8), "regions must be a"),
    "padded features with offsets": ("words", randn(2, 7, 8), "words must be a"),
    "no D": ("regions", randn(3, 4, 0), "regions must be a"),
}


@operations
@pytest.mark.parametrize(("argument", "value", "message"), BAD_OPERANDS.values(), ids=BAD_OPERANDS)
def test_direct_calls_with_bad_operands_raise(name: str, argument: str, value: Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(name, operands(name, pairs=argument == "pairs") | {argument: value})


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.endswith("_backward")])
@pytest.mark.parametrize("grad_scores", [randn(3, 3), randn(5), randn(3, 2, dtype=torch.float64)])
def test_gradients_of_other_scores_raise(name: str, grad_scores: Tensor) -> None:
    with pytest.raises(RuntimeError, match="grad_scores must be float32 of the scores' shape"):
        call(name, operands(name) | {"grad_scores": grad_scores})


@pytest.mark.parametrize("kept", [torch.zeros(2, 3, dtype=torch.int32), torch.zeros(3, 13)])
def test_best_contexts_of_another_batch_raise(kept: Tensor) -> None:
    with pytest.raises(RuntimeError, match="best contexts are not those of this batch"):
        call("maxsim_scores_backward", operands("maxsim_scores_backward") | {"kept": kept})


@operations
@pytest.mark.parametrize("code", [-1, 8])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_direct_calls_with_unknown_options_raise(name: str, number: int, code: int) -> None:
    options: list[Any] = list(OPTIONS[name.removesuffix("_backward")])
    named = getattr(torch.ops.crossret, name).default._schema.arguments[len(operands(name)) :]
    codes = [
        place for place, argument in enumerate(named) if argument.name in {**ScanOptions.modes, **MaxSimOptions.modes}
    ]
    options[codes[number]] = code
    needed = (True, True) if name.endswith("_backward") else ()
    with pytest.raises(RuntimeError, match=rf"unknown \w+ {code}"):
        getattr(torch.ops.crossret, name)(*operands(name).values(), *options, *needed)


# --- gradients


@functions
def test_only_the_wanted_gradients_are_made(function: Callable[..., Tensor]) -> None:
    for wanted in (0, 1):
        sides = [randn(2, 3, 4), randn(3, 4, 4, seed=1)]
        both = [side.clone().requires_grad_() for side in sides]
        function(*both).sum().backward()
        sides[wanted].requires_grad_()
        function(*sides).sum().backward()
        assert torch.equal(sides[wanted].grad, both[wanted].grad)
        assert sides[1 - wanted].grad is None


@functions
@pytest.mark.parametrize("transform", [False, True], ids=["autograd", "func"])
def test_second_derivatives_are_refused(function: Callable[..., Tensor], transform: bool) -> None:
    regions, words = randn(2, 3, 4), randn(3, 4, 4, seed=1)

    def score(v: Tensor) -> Tensor:
        return function(v, words).square().sum()

    def twice() -> None:
        if transform:
            torch.func.grad(lambda v: torch.func.grad(score)(v).square().sum())(regions)
        else:
            (gradient,) = torch.autograd.grad(score(regions.requires_grad_()), regions, create_graph=True)
            (gradient.square().sum() + regions.sum()).backward()

    with pytest.raises(RuntimeError, match="cannot be differentiated"):
        twice()


# --- autocast


@functions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precast", [False, True], ids=["both float32", "one cast already"])
def test_autocast(function: Callable[..., Tensor], dtype: torch.dtype, precast: bool) -> None:
    parameters = [randn(2, 3, 16).requires_grad_(), randn(3, 4, 16, seed=1).requires_grad_()]
    with torch.autocast("cpu", dtype=dtype):
        scores = function(parameters[0].to(dtype) if precast else parameters[0], parameters[1])
    scores.sum().backward()
    lowered = [parameter.detach().to(dtype).requires_grad_() for parameter in parameters]
    expected = function(*lowered)
    expected.sum().backward()
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected)
    assert not torch.equal(scores, function(*parameters))
    for ours, theirs in zip(parameters, lowered, strict=True):
        assert ours.grad.dtype == torch.float32
        assert torch.equal(ours.grad, theirs.grad.float())


@functions
def test_autocast_under_torch_func(function: Callable[..., Tensor]) -> None:
    """Where one side has been cast ahead, too."""
    v, e = randn(2, 3, 16), randn(3, 4, 16, seed=1).bfloat16()
    lowered = v.bfloat16().requires_grad_()
    function(lowered, e).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradient = torch.func.grad(lambda v: function(v, e).sum())(v)
    assert gradient.dtype == torch.float32
    assert torch.equal(gradient, lowered.grad.float())


# --- torch.compile


def compiled_arguments(layout: str, r: int, w: int) -> tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]:
    """The leaves of a call, its positional arguments and its keyword arguments. A list keeps its number of items."""
    if layout == "list":
        sides = [[randn(side + i, 8, seed=i).requires_grad_() for i in range(n)] for n, side in ((3, r), (4, w))]
        return [item for side in sides for item in side], tuple(sides), {}
    n, m = r + 7, w + 13
    shapes = ((n * r, 8), (m * w, 8)) if layout == "packed" else ((n, r, 8), (m, w, 8))
    leaves = [randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    if layout == "packed":
        return leaves, tuple(zip(leaves, (torch.arange(n + 1) * r, torch.arange(m + 1) * w), strict=True)), {}
    lengths = (torch.arange(n) % r + 1, torch.arange(m) % w + 1)
    pairs = torch.stack([torch.arange(3 * r + 1) % n, torch.arange(3 * r + 1) % m], 1)
    return leaves, (*leaves, *lengths), {"pairs": pairs} if layout == "pairs" else {}


@functions
@pytest.mark.parametrize("layout", ["padded", "packed", "list", "pairs"])
def test_compiles_once_for_all_sizes(function: Callable[..., Tensor], layout: str) -> None:
    torch.compiler.reset()
    compilations = 0

    def backend(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Any:
        nonlocal compilations
        compilations += 1
        return aot_eager(graph, examples)

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def compiled(arguments: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        return function(*arguments, **options)

    after_the_first = None
    for r, w in ((5, 9), (6, 11), (11, 7)):
        results = []
        for scores in (compiled, lambda arguments, options: function(*arguments, **options)):
            leaves, arguments, options = compiled_arguments(layout, r, w)
            output = scores(arguments, options)
            results.append((output, *torch.autograd.grad(output.square().sum(), leaves)))
        torch.testing.assert_close(*results, rtol=0, atol=0)
        after_the_first = after_the_first or compilations
    assert compilations == after_the_first


@functions
def test_compiled_calls_check_values_as_they_run(function: Callable[..., Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    regions, words = randn(2, 3, 4), randn(3, 5, 4)
    compiled(regions, words, torch.tensor([3, 1]))
    with pytest.raises(RuntimeError, match="regions: item 1 has length 9"):
        compiled(regions, words, torch.tensor([3, 9]))


# Forward mode loads decompositions that torch still scripts.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("function", [scan_scores, maxsim_scores])
@pytest.mark.parametrize("layout", ["padded", "list"])
def test_forward_mode_is_refused_not_dropped(function: Callable[..., Tensor], layout: str) -> None:
    regions, words = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(regions, torch.ones_like(regions))
        with pytest.raises(RuntimeError, match="jvp"):
            function(dual if layout == "padded" else list(dual), words, backend="cpu")
