"""Linear layers of kernels against the layer in float64: instruction sets, gradients, bfloat16, checks, transforms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossret_kernels.dense import op
from crossret_kernels.dense.op import Products
from tests.kernels.strategies import examples
from tests.kernels.threads import by_any_threads
from tests.kernels.tolerance import EPS, cpu_isa

LINEAR = Products(True).linear
HALF = torch.finfo(torch.bfloat16).eps
ISAS = torch.ops.crossret.cpu_isas().split()  # the emulated one, too
SIZES = (1, 2, 15, 17, 31, 33, 64, 100)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(rows: tuple[int, ...], n_in: int, n_out: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, a weight and a bias."""
    return (
        randn(*rows, n_in, seed=seed), randn(n_out, n_in, seed=seed + 1) / n_in**0.5, randn(n_out, seed=seed + 2),
    )  # fmt: skip


def assert_follows_the_formula(tensors: tuple[Tensor, ...], bfloat16: bool, wanted: tuple[bool, ...]) -> None:
    """Results and gradients; each within a share of what its terms sum up to without their signs."""
    leaves = [x.clone().requires_grad_(own) for x, own in zip(tensors, wanted, strict=False)]
    made = Products(True, bfloat16).linear(*leaves)
    rows, weight = (x.bfloat16().double() if bfloat16 else x.double() for x in tensors[:2])
    bias = tensors[2].double() if len(tensors) > 2 else torch.zeros(len(weight), dtype=torch.float64)
    exact = rows @ weight.T + bias
    unit = 4 * EPS * max(rows.size(-1), 16) ** 0.5
    assert ((made - exact).abs() <= unit * (rows.abs() @ weight.abs().T + bias.abs())).all()
    grad = randn(*made.shape, seed=9)
    found = iter(torch.autograd.grad(made, [x for x in leaves if x.requires_grad], grad))
    dy = grad.double().flatten(0, -2)
    flat = tensors[0].double().flatten(0, -2)
    pairs = ((dy, tensors[1].double()), (dy.T, flat), (torch.ones(1, len(dy), dtype=torch.float64), dy))
    for place, (left, right) in enumerate(pairs[: len(tensors)]):
        if not wanted[place]:
            continue
        unit = HALF if bfloat16 and place < 2 else 4 * EPS * max(left.size(1), 16) ** 0.5
        bound = unit * (left.abs() @ right.abs()) + 4 * EPS
        assert ((next(found).view(bound.shape) - left @ right).abs() <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@examples(30)
@given(
    rows=st.sampled_from(((1,), (5,), (13,), (2, 49), (97,), (3, 2, 20))), n_in=st.sampled_from(SIZES),
    n_out=st.sampled_from(SIZES), bfloat16=st.booleans(), bias=st.booleans(),
    wanted=st.sampled_from(((True, True, True), (True, False, False), (False, True, False), (False, False, True))),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_follows_the_formula_in_float64(
    isa: str, rows: tuple[int, ...], n_in: int, n_out: int, bfloat16: bool, bias: bool,
    wanted: tuple[bool, ...], seed: int,
) -> None:  # fmt: skip
    tensors = layer(rows, n_in, n_out, seed)[: 3 if bias or wanted[2] else 2]
    with cpu_isa(isa):
        assert_follows_the_formula(tensors, bfloat16, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(("rows", "n_in", "n_out"), [(2100, 40, 50), (30, 2100, 40), (130, 40, 2100), (50, 1024, 70)])
def test_many_blocks_and_slices(isa: str, bfloat16: bool, rows: int, n_in: int, n_out: int) -> None:
    with cpu_isa(isa):
        assert_follows_the_formula(layer((rows,), n_in, n_out), bfloat16, (True, True, True))


def made_of(*tensors: Tensor, bfloat16: bool = False) -> tuple[Tensor, ...]:
    """The layer and its gradients."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    made = Products(True, bfloat16).linear(*leaves)
    return made, *torch.autograd.grad(made, leaves, randn(*made.shape, seed=9))


@pytest.mark.parametrize("bfloat16", [False, True])
def test_number_of_threads_and_neighbours_do_not_show(bfloat16: bool) -> None:
    rows, *others = layer((2000,), 70, 130)
    results = by_any_threads(lambda: made_of(rows, *others, bfloat16=bfloat16))
    rows[3], rows[1999, 5] = torch.nan, torch.inf
    clean = [x for x in range(2000) if x not in (3, 1999)]
    for one, other in zip(results[:2], made_of(rows, *others, bfloat16=bfloat16), strict=False):
        assert torch.equal(one[clean], other[clean])
    assert made_of(rows, *others)[0][3].isnan().all()
    assert torch.equal(Products(True, bfloat16).linear(rows[7:8], *others), results[0][7:8])


def test_rows_of_any_strides() -> None:
    rows, weight, bias = layer((6, 7), 40, 50)
    expected = made_of(rows, weight, bias)
    wide = torch.randn(6, 9, 40)
    wide[:, 1:8] = rows
    for strided, turned in (
        (wide[:, 1:8], weight.T.contiguous().T),
        (rows.transpose(0, 1).contiguous().transpose(0, 1), weight),
    ):
        torch.testing.assert_close(made_of(strided, turned, bias), expected, rtol=0, atol=0)
    y = LINEAR(rows.requires_grad_(), weight, bias)
    assert torch.equal(
        torch.autograd.grad(y.sum(), rows, retain_graph=True)[0],  # of a gradient that is expanded
        torch.autograd.grad(y, rows, torch.ones_like(y))[0],
    )


@pytest.mark.parametrize("bias", [True, False])
def test_opcheck(bias: bool) -> None:
    tensors = [x.requires_grad_() for x in layer((2, 5), 6, 7)]
    tensors[2] = tensors[2] if bias else tensors[2].new_empty(0)
    torch.library.opcheck(torch.ops.crossret.linear.default, (*tensors, False))
    backward = torch.ops.crossret.linear_backward.default
    torch.library.opcheck(backward, (randn(2, 5, 7), *(x.detach() for x in tensors), False, True, True, bias))


BAD_OPERANDS = {
    "another in": (randn(5, 6), randn(7, 5), randn(7)),
    "another out": (randn(5, 6), randn(7, 6), randn(6)),
    "no in": (randn(5, 0), randn(7, 0), randn(7)),
    "float64": (randn(5, 6).double(), randn(7, 6), randn(7)),
    "bfloat16": (randn(5, 6), randn(7, 6).bfloat16(), randn(7)),
    "a vector": (randn(5, 6), randn(7, 6)[0], randn(7)),
}


@pytest.mark.parametrize(("rows", "weight", "bias"), BAD_OPERANDS.values(), ids=BAD_OPERANDS)
def test_direct_calls_with_bad_operands_raise(rows: Tensor, weight: Tensor, bias: Tensor) -> None:
    with pytest.raises(RuntimeError, match="must be float32 on the CPU, of rows"):
        torch.ops.crossret.linear(rows, weight, bias, False)


def test_what_pytorch_operations_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError

    tensors = layer((5,), 6, 7)
    expected = F.linear(*tensors)
    assert torch.equal(LINEAR(tensors[0][:0], *tensors[1:]), expected[:0])
    monkeypatch.setattr(op, "_LINEAR", refuse)
    assert torch.equal(Products(False).linear(*tensors), expected)
    wide = [x.double() for x in tensors]
    assert torch.equal(LINEAR(*wide), F.linear(*wide))
    assert LINEAR(tensors[0][:, :0], tensors[1][:, :0], tensors[2]).shape == (5, 7)
    assert torch.func.grad(lambda x: LINEAR(x, *tensors[1:]).sum())(tensors[0]).shape == (5, 6)
    compiled = torch.compile(LINEAR, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*tensors), expected)
    with pytest.raises(AssertionError):
        LINEAR(*tensors)
