"""`attention_pool` by every backend against its formula: layouts, precision, gradients, checks and transforms."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from crossret_kernels import UnsupportedByBackend, attention_pool, attention_pool_weights
from crossret_kernels.attention_pool import chunked
from tests.kernels.pooling import HALVES, LAYOUTS, by_hand, check_gradients, laid_out, poolings, randn, results_of
from tests.kernels.strategies import examples
from tests.kernels.tolerance import EPS, ISAS, cpu_isa

IN_TORCH = ("torch", "reference")
backends = pytest.mark.parametrize("backend", IN_TORCH)
every_backend = pytest.mark.parametrize("backend", ["cpu", *IN_TORCH])
VALUES, LOGITS, LENGTHS = randn(4, 5, 6), 3 * randn(4, 5, 2, seed=1), [5, 1, 3, 4]


@pytest.fixture(params=[32 * 2**20, 500], ids=["one chunk", "many chunks"])
def workspace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "WORKSPACE_BYTES", request.param)


def assert_follows_the_formula(
    values: Tensor, logits: Tensor, lengths: list[int], dtype: torch.dtype, layout: str, backend: str
) -> None:
    width = values.size(1) if layout == "padded" else max(lengths)
    values, logits = values[:, :width].to(dtype), logits[:, :width].to(dtype)
    expected = by_hand(values.double(), logits.double(), lengths)
    arguments = laid_out(values, logits, lengths, layout)
    outputs = attention_pool_weights(*arguments, backend=backend)
    for ours, true in zip(outputs, expected, strict=True):
        assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        unit = 1e-14 if dtype == torch.float64 else 64 * EPS
        torch.testing.assert_close(ours.double(), true, rtol=unit, atol=unit)
    assert torch.equal(attention_pool(*arguments, backend=backend), outputs[0])


@examples(15)
@given(
    batch=poolings(), dtype=st.sampled_from((torch.float64, torch.float32, *HALVES)), layout=st.sampled_from(LAYOUTS)
)
def test_follows_the_formula(batch: tuple[Any, ...], dtype: torch.dtype, layout: str) -> None:
    for backend in IN_TORCH:
        assert_follows_the_formula(*batch, dtype, layout, backend)


@pytest.mark.parametrize("isa", ISAS)
@examples(40)
@given(batch=poolings(), dtype=st.sampled_from((torch.float32, *HALVES)), layout=st.sampled_from(LAYOUTS))
def test_kernels_follow_the_formula(isa: str, batch: tuple[Any, ...], dtype: torch.dtype, layout: str) -> None:
    with cpu_isa(isa):
        assert_follows_the_formula(*batch, dtype, layout, "cpu")


@pytest.mark.parametrize("isa", ISAS)
@examples(40)
@given(
    batch=poolings(), dtype=st.sampled_from((torch.float32, *HALVES)), layout=st.sampled_from((*LAYOUTS, "mask")),
    wanted=st.sampled_from(((True, True), (True, False), (False, True))), seed=st.integers(0, 9),
)  # fmt: skip
def test_gradients_of_kernels_are_those_of_the_formula_in_float64(
    isa: str, batch: tuple[Any, ...], dtype: torch.dtype, layout: str, wanted: tuple[bool, bool], seed: int
) -> None:
    with cpu_isa(isa):
        check_gradients(*batch, dtype, layout, "cpu", wanted, seed)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("length", "dim", "heads"), [(300, 40, 5), (70, 1100, 13), (9, 9000, 3), (70, 1100, 40)])
def test_many_blocks_of_rows_and_tiles_of_heads(isa: str, length: int, dim: int, heads: int) -> None:
    values, logits = randn(2, length, dim), 3 * randn(2, length, heads, seed=1)
    with cpu_isa(isa):
        assert_follows_the_formula(values, logits, [length, length - 3], torch.float32, "padded", "cpu")
        for layout in ("padded", "mask"):
            check_gradients(values, logits, [length, length - 3], torch.bfloat16, layout, "cpu", (True, True), 0)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_number_of_threads_and_neighbours_do_not_show(dtype: torch.dtype) -> None:
    values, logits = randn(40, 30, 300).to(dtype), randn(40, 30, 13, seed=1).to(dtype)
    lengths = [1 + 7 * item % 30 for item in range(40)]
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(results_of(values, logits, lengths, "cpu"))
    finally:
        torch.set_num_threads(before)
    alone = results_of(values[7:8, : lengths[7]], logits[7:8, : lengths[7]], None, "cpu")
    for first, *others, own in zip(*results, alone, strict=True):
        assert all(torch.equal(first, other) for other in others)
        narrow = tuple(slice(size) for size in own.shape[1:])
        assert torch.equal(first[7][narrow], own[0])


@pytest.mark.usefixtures("workspace")
@backends
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(layout: str, backend: str) -> None:
    """Of both results; padding gets no gradient."""
    values, logits = VALUES.clone().requires_grad_(), LOGITS.clone().requires_grad_()

    def outputs(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return attention_pool_weights(*laid_out(x, a, LENGTHS, layout), backend=backend)

    assert gradcheck(outputs, (values, logits), fast_mode=True)
    for gradient in torch.autograd.grad([x.square().sum() for x in outputs(values, logits)], (values, logits)):
        for item, length in zip(gradient, LENGTHS, strict=True):
            assert not item[length:].any()


@pytest.mark.usefixtures("workspace")
@every_backend
def test_nan_stays_in_its_item_and_padding_is_never_read(backend: str) -> None:
    dtype = torch.float32 if backend == "cpu" else torch.float64
    given = VALUES.to(dtype), LOGITS.to(dtype)

    def results(values: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        return results_of(values, logits, LENGTHS, backend)

    clean = results(*given)
    for value in (torch.nan, torch.inf):
        padded = [side.clone() for side in given]
        for side in padded:
            for item, length in zip(side, LENGTHS, strict=True):
                item[length:] = value
        for ours, theirs in zip(results(*padded), clean, strict=True):
            assert torch.equal(ours, theirs)
        for place in range(2):
            sides = [side.clone() for side in padded]
            sides[place][2, 1, 0] = torch.nan
            outputs = results(*sides)
            assert outputs[0][2].isnan().any()
            for ours, theirs in zip(outputs, clean, strict=True):
                assert torch.equal(ours[[0, 1, 3]], theirs[[0, 1, 3]])


@every_backend
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_no_items(layout: str, backend: str) -> None:
    values, logits = (torch.zeros(0, dim).requires_grad_() for dim in (6, 2))
    arguments = ((values, torch.tensor([0])), logits) if layout == "packed" else (values[None][:0], logits[None][:0])
    pooled, weights = attention_pool_weights(*arguments, backend=backend)
    assert pooled.shape == (0, 2, 6)
    assert weights.shape == (0, 2, 1)
    for gradient in torch.autograd.grad(pooled.sum() + weights.sum(), (values, logits)):
        assert gradient.shape[0] == 0


PACKED = laid_out(VALUES, LOGITS, LENGTHS, "packed")
LISTED = laid_out(VALUES, LOGITS, LENGTHS, "list")

ERRORS: tuple[tuple[str, tuple[Any, ...], type[Exception], str], ...] = (
    ("empty item", (VALUES, LOGITS, [5, 0, 1, 1]), ValueError, "lengths[1] is 0: every item needs at least one row"),
    ("lengths of packed", (*PACKED, [1]), ValueError, "lengths goes with padded values only"),
    ("no logits", (VALUES, None), TypeError, "logits must be a (n, L, r) tensor, not NoneType"),
    ("logits of other rows", (VALUES, LOGITS[:, :4]), ValueError, "logits must have shape (n, L, r) = (4, 5, 2), got"),
    ("no heads", (VALUES, LOGITS[..., :0]), ValueError, "logits has r = 0"),
    ("float32 logits", (VALUES, LOGITS.float()), TypeError, "logits is torch.float32 but values are torch.float64"),
    ("packed logits", (PACKED[0], LOGITS), ValueError, "logits must have shape (rows, r) = (13, 2), got (4, 5, 2)"),
    ("listed rows", (LISTED[0], LISTED[1][::-1]), ValueError, "logits[0] must have shape (L, r) = (5, 2), got (4, 2)"),
    ("heads", (LISTED[0], [*LISTED[1][:3], LISTED[1][3][:, :1]]), ValueError, "logits[3] has r = 1 but logits[0]"),
)


@pytest.mark.parametrize(("arguments", "error", "message"), [pytest.param(*case[1:], id=case[0]) for case in ERRORS])
def test_mistakes_are_named(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        attention_pool(*arguments)


# --- the operations


def operands(layout: str = "padded", dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    values, logits = VALUES.to(dtype), LOGITS.float()
    given: dict[str, Any] = {"values": values, "offsets": None, "lengths": None, "mask": None, "logits": logits}
    if layout == "packed":
        (rows, offsets), packed = laid_out(values, logits, LENGTHS, layout)
        return given | {"values": rows, "offsets": offsets, "logits": packed}
    if layout == "mask":
        return given | {"mask": torch.arange(20).view(4, 5) % 3 != 0}
    return given | {"lengths": torch.tensor(LENGTHS)}


@pytest.mark.parametrize("layout", ["padded", "packed", "mask"])
@pytest.mark.parametrize("width", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(layout: str, width: int, dtype: torch.dtype) -> None:
    arguments = operands(layout, dtype)
    grads = randn(4, 2, 6, seed=2).float(), randn(4, 2, width, seed=3).float()
    gradients = (*grads, *arguments.values(), width, True, width > 0)
    torch.library.opcheck(torch.ops.crossret.attention_pool_backward.default, gradients)
    for name in ("values", "logits"):
        arguments[name].requires_grad_()
    torch.library.opcheck(torch.ops.crossret.attention_pool.default, (*arguments.values(), width))


BAD = {
    "length past the rows": ({"lengths": torch.tensor([5, 6, 1, 1])}, 5, "values: item 1 has length 6"),
    "empty item": ({"lengths": torch.tensor([5, 0, 1, 1])}, 5, "values: item 1 has length 0"),
    "empty mask": (
        {"lengths": None, "mask": torch.arange(4)[:, None].expand(4, 5) != 1},
        5,
        "item 1 has no valid rows",
    ),
    "narrow weights": ({}, 4, "width is 4 but an item has 5 rows"),
    "other rows": ({"logits": torch.zeros(4, 4, 2)}, 5, "logits must be float32 on the CPU, a row of heads for each"),
    "other dtype": ({"logits": torch.zeros(4, 5, 2).double()}, 5, "logits must be float32 on the CPU"),
    "no heads": ({"logits": torch.zeros(4, 5, 0)}, 5, "logits must be float32 on the CPU"),
}


@pytest.mark.parametrize(("changed", "width", "message"), BAD.values(), ids=BAD)
def test_direct_calls_with_bad_operands_raise(changed: dict[str, Any], width: int, message: str) -> None:
    arguments = (operands() | changed).values()
    with pytest.raises(RuntimeError, match=message):
        torch.ops.crossret.attention_pool(*arguments, width)
    grads = torch.zeros(4, 2, 6), torch.zeros(4, 2, width)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.crossret.attention_pool_backward(*grads, *arguments, width, True, True)


@pytest.mark.parametrize("grads", [((4, 2, 5), (4, 2, 5)), ((4, 2, 6), (4, 2, 4)), ((3, 2, 6), (3, 2, 5))])
def test_gradients_of_other_results_raise(grads: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(RuntimeError, match="gradients must be float32 of the results' shapes"):
        torch.ops.crossret.attention_pool_backward(*map(torch.zeros, grads), *operands().values(), 5, True, True)


def test_logits_may_be_wider_or_narrower_than_values() -> None:
    """Gradients come in their dtypes."""
    for values, logits in ((torch.bfloat16, torch.float32), (torch.float32, torch.float16)):
        leaves = VALUES.to(values).requires_grad_(), LOGITS.to(logits).requires_grad_()
        pooled = attention_pool(*leaves, LENGTHS)
        assert pooled.dtype == torch.float32
        torch.testing.assert_close(pooled, attention_pool(*leaves, LENGTHS, backend="torch"))
        assert [x.dtype for x in torch.autograd.grad(pooled.sum(), leaves)] == [values, logits]


def test_second_derivatives_are_served_by_torch_alone() -> None:
    leaf = VALUES.float().requires_grad_()

    def twice(backend: str | None) -> Tensor:
        pooled = attention_pool(leaf, LOGITS.float(), LENGTHS, backend=backend)
        (gradient,) = torch.autograd.grad(pooled.pow(3).sum(), leaf, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), leaf)[0]

    assert twice("torch").isfinite().all()
    with pytest.raises(RuntimeError, match="second derivatives are served by backend='torch'"):
        twice(None)


def test_what_kernels_refuse() -> None:
    with pytest.raises(UnsupportedByBackend, match=r"not torch\.float64"):
        attention_pool(VALUES, LOGITS, backend="cpu")
    with pytest.raises(UnsupportedByBackend, match="go through 'torch'"):
        torch.func.grad(lambda x: attention_pool(x, LOGITS.float(), backend="cpu").sum())(VALUES.float())
    expected = torch.autograd.functional.jacobian(lambda x: attention_pool(x, LOGITS), VALUES).sum((0, 1, 2))
    torch.testing.assert_close(torch.func.grad(lambda x: attention_pool(x, LOGITS).sum())(VALUES), expected)


def test_autocast_changes_nothing() -> None:
    leaves = VALUES.float().requires_grad_(), LOGITS.float().requires_grad_()
    expected = attention_pool(*leaves, LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = attention_pool(*leaves, LENGTHS)
    for ours, theirs in zip(
        torch.autograd.grad(pooled.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert torch.equal(pooled, expected)


def test_compiles_once_for_all_sizes() -> None:
    torch.compiler.reset()
    compiled = torch.compile(attention_pool_weights, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, width, dim, heads in ((5, 7, 9, 3), (6, 8, 11, 4), (9, 13, 17, 5)):
        leaves = randn(n, width, dim).float().requires_grad_(), randn(n, width, heads).float().requires_grad_()
        lengths = torch.arange(n) % width + 1
        results = []
        for function in (compiled, attention_pool_weights):
            with torch.compiler.set_stance("default" if n == 5 else "fail_on_recompile"):
                made = function(*leaves, lengths)
            results.append((*made, *torch.autograd.grad([x.square().sum() for x in made], leaves)))
        for ours, theirs in zip(*results, strict=True):
            assert torch.equal(ours, theirs)
