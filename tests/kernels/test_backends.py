"""Backends by name: which serves a call, how one is named, and why one refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import crossret_kernels
from crossret_kernels import (
    UnsupportedByBackend,
    attention_pool,
    backends,
    gated_attention_weights,
    heterogeneous_scores,
    infonce_loss,
    maxsim_argmax,
    maxsim_scores,
    maxsim_topk,
    scan_attention,
    scan_scores,
    sigmoid_loss,
    triplet_loss,
)
from crossret_kernels.backends import select_backend
from crossret_kernels.info import OPERATIONS
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers
from tests.kernels.subprocesses import run_python
from tests.kernels.tolerance import cpu_isa

FUNCTIONS = (scan_scores, maxsim_scores)
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
REGIONS = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
WORDS = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))

# For float32: those behind it multiply bfloat16.
FASTEST = [isa for isa in torch.ops.crossret.cpu_isas().split() if isa in ("base", "avx2", "avx512", "neon")][-1]

functions = pytest.mark.parametrize("function", FUNCTIONS)


@pytest.fixture(autouse=True)
def unset_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CROSSRET_BACKEND", "CROSSRET_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    with cpu_isa(FASTEST):
        yield


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", torch.float32, "cpu"),
        ("cpu", torch.bfloat16, "cpu"),
        ("cpu", torch.float16, "cpu"),
        ("cpu", torch.float64, "torch"),
        ("cuda", torch.float32, "triton" if torch.cuda.is_available() else "torch"),
        ("cuda", torch.float64, "torch"),
    ],
)
def test_the_fastest_that_can_serves(device: str, dtype: torch.dtype, expected: str) -> None:
    assert select_backend(None, torch.device(device), dtype) == expected


@functions
def test_the_variable_prefers_a_backend_where_it_can_serve(
    function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read at every call."""
    for name in ("cpu", "torch", "triton", "reference", "cuda", ""):
        monkeypatch.setenv("CROSSRET_BACKEND", name)
        served = name if name in ("torch", "reference") else "cpu"
        assert select_backend(None, CPU, torch.float32) == served
        assert select_backend(None, CPU, torch.float64) == ("reference" if name == "reference" else "torch")
        assert torch.equal(function(REGIONS, WORDS), function(REGIONS, WORDS, backend=served))


GATED: dict[str, Any] = {
    "region_contexts": REGIONS[:, :1],
    "word_contexts": WORDS[:, :1],
    "parameters": gated_parameters(8, 8, 4, 4, 4, torch.Generator().manual_seed(2)),
}
LAYERS = make_layers(1, 8, torch.float64)

EXACT = REGIONS.double(), WORDS.double()
# What no kernel makes, and types that none takes.
IN_TORCH: dict[str, Callable[..., Any]] = {
    "attention_pool in float64": partial(attention_pool, EXACT[0], EXACT[0]),
    "scan_attention in float64": partial(scan_attention, *EXACT, pairs=torch.tensor([[0, 0]])),
    "gated_attention_weights": lambda **options: (
        gated_attention_weights(REGIONS, WORDS, **GATED, pairs=torch.tensor([[0, 0]]), **options).scores
    ),
    "heterogeneous_scores in float64": partial(heterogeneous_scores, *EXACT, layers=LAYERS),
    "scan_scores in float64": partial(scan_scores, *EXACT),
    "maxsim_scores in float64": partial(maxsim_scores, *EXACT),
    "triplet_loss in float64": partial(triplet_loss, torch.eye(3).double()),
    "infonce_loss in float64": partial(infonce_loss, torch.eye(3).double(), 2.0),
    "sigmoid_loss in float64": partial(sigmoid_loss, torch.eye(3).double(), 2.0, -1.0),
}


@pytest.mark.parametrize("name", IN_TORCH)
@pytest.mark.parametrize("backend", ["cpu", "triton", "cuda"])
def test_a_preference_that_cannot_serve_is_none(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = IN_TORCH[name]
    expected = call()
    monkeypatch.setenv("CROSSRET_BACKEND", backend)
    torch.testing.assert_close(call(), expected, rtol=0, atol=0)
    with pytest.raises(UnsupportedByBackend, match=f"backend '{backend}' cannot serve this call: "):
        call(backend=backend)


@pytest.mark.parametrize(
    "call",
    [
        lambda **options: maxsim_scores(REGIONS, WORDS, **options),
        lambda **options: maxsim_argmax(REGIONS, WORDS, **options).indices,
        lambda **options: maxsim_topk(REGIONS, WORDS, k=2, **options)[1],
        lambda **options: triplet_loss(REGIONS[0, :, :3], **options),
    ],
    ids=["scores", "argmax", "topk", "loss"],
)
def test_cuda_has_kernels_of_attention_alone(call: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = call()
    unsupported = backends.unsupported_reason
    monkeypatch.setattr(
        backends, "unsupported_reason", lambda name, *of: None if name == "cuda" else unsupported(name, *of)
    )
    with pytest.raises(UnsupportedByBackend, match=r"its kernels do not make this; those of .*'triton' do"):
        call(backend="cuda")
    monkeypatch.setenv("CROSSRET_BACKEND", "cuda")
    assert torch.equal(call(), expected)


@functions
def test_unknown_names(function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="backend must be one of cpu, triton, cuda, torch, reference, not 'gpu'"):
        function(REGIONS, WORDS, backend="gpu")
    monkeypatch.setenv("CROSSRET_BACKEND", "gpu")
    with pytest.raises(ValueError, match=r"CROSSRET_BACKEND must be one of cpu, .*, not 'gpu'"):
        function(REGIONS, WORDS)


@pytest.mark.parametrize("name", ["triton", "cuda"])
def test_a_gpu_s_backend_says_what_it_lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = partial(backends.unsupported_reason, name)
    monkeypatch.setattr(backends, "CUDA_MISSING", None)
    monkeypatch.setattr(backends, "CUDA_ARCHITECTURES", "8.0 9.0a")
    assert reason(CPU, torch.bfloat16) == "it runs on CUDA devices but the features are on cpu"
    assert reason(GPU, torch.float64) == "it takes float32, bfloat16 and float16 features, not torch.float64"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert reason(GPU, torch.bfloat16) == "this PyTorch finds no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert reason(GPU, torch.bfloat16) is None
    assert reason(GPU, torch.float32) == (backends.NOT_IN_TF32 if name == "cuda" else None)
    assert select_backend(name, GPU, torch.bfloat16) == name
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert reason(GPU, torch.float32) == "it takes compute capability 8.0 or newer, cuda:0 has (7, 5)"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert reason(GPU, torch.bfloat16) == "it is written for NVIDIA's GPUs, this PyTorch is built for ROCm 6.4"
    monkeypatch.setattr(backends, f"{name.upper()}_MISSING", "it is not there")
    assert reason(GPU, torch.bfloat16) == "it is not there"
    assert select_backend(None, GPU, torch.bfloat16) == "torch"


def test_the_cuda_library_serves_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "CUDA_MISSING", None)
    monkeypatch.setattr(backends, "CUDA_ARCHITECTURES", "8.0 9.0a")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert select_backend(None, GPU, torch.bfloat16, first=("cuda", "triton")) == "cuda"
    assert backends.serving(GPU, torch.bfloat16) == "triton or cuda"
    assert (backends.serving(GPU, torch.float64), backends.serving(CPU, torch.bfloat16)) == ("torch", "cpu")
    assert select_backend(None, GPU, torch.bfloat16) == "triton"
    monkeypatch.setattr(backends, "TRITON_MISSING", "Triton is not installed (pip install triton)")
    assert select_backend(None, GPU, torch.bfloat16) == "cuda"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (12, 0))
    refusal = "it is built for compute capability 8.0 9.0a, cuda:0 has (12, 0)"
    assert backends.unsupported_reason("cuda", GPU, torch.bfloat16) == refusal


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        ("8.0", (8, 0), True),
        ("8.0", (8, 9), True),
        ("8.6", (8, 0), False),
        ("8.0 8.6", (9, 0), False),
        ("8.0+PTX", (12, 1), True),
        ("9.0a+PTX", (9, 0), True),
        ("9.0a+PTX", (10, 0), False),
        ("10.0f", (10, 3), True),
        ("10.0f+PTX", (12, 0), False),
        ("8.0 12.0+PTX", (10, 0), False),
    ],
)
def test_devices_that_built_kernels_run_on(architectures: str, capability: tuple[int, int], expected: bool) -> None:
    assert backends.runs_on(architectures, capability) == expected


@functions
def test_every_instruction_set_can_be_named(function: Callable[..., Tensor]) -> None:
    expected = function(REGIONS, WORDS, backend="reference")
    isas = torch.ops.crossret.cpu_isas().split()
    assert isas[0] == "base"
    torch.ops.crossret.select_cpu_isa("")
    assert torch.ops.crossret.selected_cpu_isa() == FASTEST
    for name in isas:
        with cpu_isa(name):
            assert torch.ops.crossret.selected_cpu_isa() == name
            torch.testing.assert_close(function(REGIONS, WORDS), expected)


def test_the_instruction_sets_are_those_of_the_processor() -> None:
    flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(encoding="ascii"), re.MULTILINE)
    if flags is None:
        pytest.skip("no x86")
    wanted = {
        "base": "",
        "amx_emulated": "",
        "avx2": "avx2 fma f16c",
        "avx512": "avx2 fma f16c avx512f avx512bw avx512vl avx512dq",
        "avx512bf16": "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16",
        "amx": "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16 amx_tile amx_bf16",
    }
    has = [name for name, needed in wanted.items() if set(needed.split()) <= set(flags[1].split())]
    assert torch.ops.crossret.cpu_isas().split() == has


@functions
@pytest.mark.parametrize("backward", [False, True])
def test_an_unknown_instruction_set_names_what_there_is(function: Callable[..., Tensor], backward: bool) -> None:
    scores = function(REGIONS.clone().requires_grad_(), WORDS)
    isas = torch.ops.crossret.cpu_isas().replace(" ", ", ")
    refusal = f"CROSSRET_CPU_ISA is 'avx1024', but this processor has: {isas}"
    with cpu_isa("avx1024"), pytest.raises(RuntimeError, match=refusal):
        scores.sum().backward() if backward else function(REGIONS, WORDS)


DTYPES = ("float32", "bfloat16", "float16")


def test_info_says_what_runs_and_why() -> None:
    isas = torch.ops.crossret.cpu_isas()
    process = run_python("-m", "crossret_kernels.info")
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    assert lines[0] == f"crossret_kernels in {Path(crossret_kernels.__file__).parent}"
    assert lines[1].startswith(f"torch {torch.__version__}, numpy ")
    start, running = f"native CPU kernels: {isas}; running ", lines[2].removesuffix(" (CROSSRET_CPU_ISA)")
    assert running.startswith(start)
    assert lines[2] != running
    with cpu_isa(""):
        fastest = {dtype: torch.ops.crossret.selected_cpu_isa(dtype) for dtype in DTYPES}
    alike = len(set(fastest.values())) == 1  # this processor has nothing of its own for half precision
    of_dtypes = ", ".join(f"{isa} ({dtype})" for dtype, isa in fastest.items())
    assert running.removeprefix(start) == (FASTEST if alike else of_dtypes)
    for dtype, chosen in (("float32", "cpu"), ("bfloat16", "cpu"), ("float16", "cpu"), ("float64", "torch")):
        assert f"cpu torch.{dtype}: {chosen}" in lines
    assert "    not cpu: it takes float32, bfloat16 and float16 features, not torch.float64" in lines
    assert "    not triton: it runs on CUDA devices but the features are on cpu" in lines
    assert lines[3].startswith("native CUDA kernels: ")
    assert lines[4] == f"Triton {version('triton')}: kernels for CUDA devices of compute capability 8.0 or newer"
    chosen = {words[0]: words[1:] for words in map(str.split, lines)}
    assert chosen["cpu"] == [*DTYPES, "float64"]  # of the table, below the lines of dtypes
    for names, has in OPERATIONS.items():
        for name in names:
            assert chosen[name] == (["cpu"] * 3 if "cpu" in has else ["torch"] * 3) + ["torch"]
    assert lines[-1] == "CROSSRET_BACKEND: not set"
