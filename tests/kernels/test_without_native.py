"""Life without the native library: slow scores are warned of, graphs compile, and everyone is told what is missing."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import crossret_kernels
from crossret_kernels import attention_pool, backends, maxsim_argmax, maxsim_scores, scan_attention, scan_scores
from crossret_kernels.late_interaction import maxsim
from tests.kernels.subprocesses import run_python
from tests.kernels.test_backends import FUNCTIONS, REGIONS, WORDS


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the library had not been built, and nobody had been told of it yet."""
    monkeypatch.delenv("CROSSRET_BACKEND", raising=False)
    monkeypatch.setattr(backends, "NATIVE_MISSING", "it was not built")
    backends._warn_of_slow_scores.cache_clear()
    yield
    backends._warn_of_slow_scores.cache_clear()


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize("functions", [FUNCTIONS, (maxsim, maxsim_argmax)])  # the first at another depth of calls
def test_slow_scores_are_warned_of_once_with_what_to_do(functions: tuple[Callable[..., Any], ...]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in functions * 2:
            function(REGIONS, WORDS)
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__  # the caller's line, not ours
    message = str(warning.message)
    assert "several times slower" in message
    assert f"missing from {Path(crossret_kernels.__file__).parent}: it was not built" in message
    assert "`make setup`" in message
    assert "`python -m crossret_kernels.info`" in message


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize(
    "call",
    [
        lambda: scan_scores(REGIONS.double(), WORDS.double()),
        lambda: maxsim_scores(REGIONS, WORDS, backend="torch"),
        lambda: maxsim_scores(REGIONS, WORDS, backend="reference"),
        lambda: scan_attention(REGIONS.double(), WORDS.double(), pairs=torch.tensor([[0, 0]])),
        lambda: attention_pool(REGIONS.double(), REGIONS.double()),
    ],
    ids=["float64", "torch", "reference", "attention", "pooling"],
)
def test_nothing_is_warned_of_where_the_library_would_change_nothing(call: Callable[[], object]) -> None:
    call()  # warnings are errors


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.usefixtures("without_native")
def test_without_the_native_library_whole_graphs_compile(function: Callable[..., Tensor]) -> None:
    def scores(backend: str | None = None) -> Tensor:
        return function(REGIONS, WORDS, pairs=torch.tensor([[0, 0], [1, 2]]), backend=backend)

    torch.testing.assert_close(torch.compile(scores, backend="aot_eager", fullgraph=True)(), scores("torch"))


SCORES_WITHOUT_NATIVE = """
import json, torch, warnings
from crossret_kernels import UnsupportedByBackend, backends, maxsim_scores, scan_scores
from crossret_kernels.info import describe
with warnings.catch_warnings():  # the description tells all of it and warns of nothing
    warnings.simplefilter("error")
    description = describe()
backends._warn_of_slow_scores.cache_clear()
regions, words = torch.ones(2, 3, 4).requires_grad_(), torch.ones(3, 4, 4)
refusals = []
for function in (scan_scores, maxsim_scores):
    scores = function(regions, words)
    assert torch.equal(scores, function(regions, words, backend="torch"))
    scores.sum().backward()
    assert torch.allclose(scores, function(regions, words, backend="reference"))
    try:
        function(regions, words, backend="cpu")
    except UnsupportedByBackend as error:
        refusals.append(str(error))
print(json.dumps([refusals, description]))
"""


@pytest.mark.parametrize(
    ("library", "reason"),
    [(None, "the native library was not built"), (b"no library", "the native library does not load: ")],
    ids=["missing", "broken"],
)
def test_without_the_native_library(tmp_path: Path, library: bytes | None, reason: str) -> None:
    package = tmp_path / "crossret_kernels"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(crossret_kernels.__file__).parent, package, ignore=ignored)
    if library is not None:
        (package / "_native.abi3.so").write_bytes(library)
    process = run_python("-c", SCORES_WITHOUT_NATIVE, directory=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("RuntimeWarning") == 1
    refusals, description = json.loads(process.stdout)
    assert len(refusals) == len(FUNCTIONS)
    for refusal in refusals:
        assert refusal.startswith(f"backend 'cpu' cannot serve this call: {reason}")
    lines = description.splitlines()
    assert lines[0] == f"crossret_kernels in {package}"
    assert lines[2].startswith(f"native CPU kernels: none, {reason}")
    assert "cpu torch.float32: torch" in lines
    assert any(line.startswith(f"    not cpu: {reason}") for line in lines)
