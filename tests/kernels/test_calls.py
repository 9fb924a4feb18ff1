"""What a call passes on its way to an operation: modes that watch or replace operations, and no memory left behind."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from crossret_kernels import UnsupportedByBackend, backends, maxsim_scores, scan_scores
from crossret_kernels.cross_attention import op as cross_attention_op
from crossret_kernels.maxsim import op as maxsim_op

functions = pytest.mark.parametrize("function", [scan_scores, maxsim_scores])


class Refused(Exception):
    pass


class OfFunctions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "crossret" in str(func):
            raise Refused(func)
        return func(*args, **(kwargs or {}))


class OfOperations(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "crossret" in str(func):
            raise Refused(func)
        return func(*args, **(kwargs or {}))


def features(**options: Any) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 4, 8, **options), torch.ones(3, 5, 8, **options)


@functions
@pytest.mark.parametrize("mode", [OfFunctions, OfOperations])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_modes_see_the_operation(
    function: Callable[..., Tensor], mode: type[AbstractContextManager[Any]], requires_grad: bool
) -> None:
    with mode(), pytest.raises(Refused, match=f"crossret.{function.__name__}"):
        function(*features(requires_grad=requires_grad), backend="cpu")


@functions
def test_features_that_torch_negates_when_it_reads_them(function: Callable[..., Tensor]) -> None:
    regions, words = features()
    negated = torch.complex(regions, regions).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(function(negated, words, backend="cpu"), function(-regions, words, backend="cpu"))


@functions
def test_a_call_leaves_no_memory_behind(function: Callable[..., Tensor]) -> None:
    sides, calls = features(), 20_000

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    for _ in range(calls // 10):
        function(*sides, backend="cpu")
    before = pages()
    for _ in range(calls):
        function(*sides, backend="cpu")
    assert (pages() - before) * mmap.PAGESIZE / calls < 40  # a string that is kept takes 48 bytes


@pytest.mark.parametrize("op", [cross_attention_op, maxsim_op], ids=["scan", "maxsim"])
def test_what_the_fastest_refuses_late_is_scored_all_the_same(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items too long for its memory, say; a backend that is demanded says so."""

    def refuse(*_: Any) -> Tensor:
        raise UnsupportedByBackend("the longest item has 40000 rows")

    function = scan_scores if op is cross_attention_op else maxsim_scores
    regions, words = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    expected = function(regions, words, backend="torch")
    monkeypatch.setitem(op.SCORES, "cpu", refuse)
    monkeypatch.delenv(backends.ENVIRONMENT_VARIABLE, raising=False)
    assert torch.equal(function(regions, words), expected)
    with pytest.raises(UnsupportedByBackend, match="40000 rows"):
        function(regions, words, backend="cpu")
