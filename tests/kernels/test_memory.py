"""Memory: nothing outside the inputs is read, nothing outside the buffers written, nothing uninitialised used."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.limited_memory import CASES
from tests.kernels.subprocesses import run_python

MALLOC_DEBUG = "libc_malloc_debug.so.0"
CHECKED = {"LD_PRELOAD": MALLOC_DEBUG, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "1"}
PERTURBED = 0xFE  # the complement of MALLOC_PERTURB_: floats of it are −1.7e38


@pytest.mark.parametrize(
    "arguments",
    [
        ["end"],
        ["start", "--normalize"],
        ["strided"],
        ["strided", "--normalize"],
        ["padding"],
        ["padding", "--normalize"],
    ],
    ids=" ".join,
)
def test_nothing_outside_the_inputs_is_read(arguments: list[str]) -> None:
    process = run_python("-m", "tests.kernels.guarded_memory", *arguments)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 0


@pytest.mark.parametrize("placement", ["overrun", "underrun"])
def test_the_guard_pages_guard(placement: str) -> None:
    assert run_python("-m", "tests.kernels.guarded_memory", placement).returncode == -signal.SIGSEGV


@pytest.fixture
def checked_allocator() -> None:
    try:
        ctypes.CDLL(MALLOC_DEBUG)
    except OSError:
        pytest.skip(f"this C library has no {MALLOC_DEBUG}")


@pytest.fixture(scope="module")
def plain_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_results(tmp_path_factory.mktemp("plain") / "results.npy")


def run_results(path: Path, *arguments: str, **environment: str) -> Path:
    process = run_python("-m", "tests.kernels.fresh_memory", str(path), *arguments, OMP_NUM_THREADS="2", **environment)
    assert process.returncode == 0, process.stderr
    return path


def assert_same_bits(ours: Path, theirs: Path) -> None:
    results = [np.load(path, allow_pickle=False) for path in (ours, theirs)]
    assert np.isfinite(results[0]).all()
    assert np.array_equal(*(result.view(np.uint32) for result in results))


def test_fresh_tensors_full_of_nan_change_nothing(tmp_path: Path, plain_results: Path) -> None:
    assert_same_bits(run_results(tmp_path / "results.npy", "--fill"), plain_results)


@pytest.mark.usefixtures("checked_allocator")
def test_guarded_blocks_full_of_garbage_change_nothing(tmp_path: Path, plain_results: Path) -> None:
    assert_same_bits(run_results(tmp_path / "results.npy", **CHECKED), plain_results)


@pytest.mark.usefixtures("checked_allocator")
def test_the_checked_allocator_checks() -> None:
    assert run_python("-m", "tests.kernels.fresh_memory", "overflow", **CHECKED).returncode == -signal.SIGABRT
    process = run_python("-m", "tests.kernels.fresh_memory", "perturbed", **CHECKED)
    assert process.stdout.strip() == f"{PERTURBED:02x}" * 40


@pytest.mark.parametrize(
    "case", ["scores", "threads", "slice", "pairs", "gram", "dense", "sparse", "expanded", "bfloat16", "float16"]
)
def test_the_workspace_is_bounded_whatever_the_batch(case: str) -> None:
    assert peak_rise(case) <= 64


@pytest.mark.parametrize("case", ["candidates", "int32 pairs", "argmax"])
def test_pairs_are_listed_in_slices_where_no_gradient_keeps_them(case: str) -> None:
    assert peak_rise(case) <= 24


@pytest.mark.parametrize("case", ["attention packed", "attention padded"])
def test_attention_pads_the_listed_items_alone(case: str) -> None:
    assert peak_rise(case) <= 32


@pytest.mark.parametrize("case", ["gated forward", "gated backward", "gated pairs"])
def test_the_workspace_of_gated_attention_is_bounded(case: str) -> None:
    """Where all pairs' hidden states would take 1.6 GiB."""
    assert peak_rise(case) <= 192


@pytest.mark.parametrize("case", ["heterogeneous", "heterogeneous long"])
def test_the_workspace_of_heterogeneous_attention_is_bounded(case: str) -> None:
    """Where a layer makes a dozen tensors of all pairs' features, 40 MiB each, or of long items' logits, 132 MiB."""
    assert peak_rise(case) <= 256


def test_the_workspace_of_attention_pooling_is_bounded() -> None:
    # Chunks that are freed go back to the system at once, or what is measured is in which of them glibc puts the next:
    # 32 MiB in most runs and 128 in some.
    assert peak_rise("pool", MALLOC_MMAP_THRESHOLD_="65536", MALLOC_ARENA_MAX="1") <= 48


def peak_rise(case: str, **environment: str) -> float:
    process = run_python("-m", "tests.kernels.peak_memory", case, **environment)
    assert process.returncode == 0, process.stderr
    return float(process.stdout)


@pytest.mark.parametrize("kind", ["forward", "backward float32", "backward half"])
def test_nothing_beyond_the_bound_is_even_mapped(kind: str) -> None:
    cases = [case for case in CASES if case.startswith(kind)]
    process = run_python("-m", "tests.kernels.limited_memory", "cpu", *cases, MALLOC_ARENA_MAX="1")
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == cases


@pytest.mark.parametrize("case", ["forward t2i", "backward half maxsim"])
def test_the_limit_on_mappings_holds(case: str) -> None:
    process = run_python("-m", "tests.kernels.limited_memory", "reference", case, MALLOC_ARENA_MAX="1")
    assert process.returncode != 0
    assert "can't allocate memory" in process.stderr
