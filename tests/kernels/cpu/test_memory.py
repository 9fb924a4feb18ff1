"""Memory: nothing outside the inputs is read, nothing outside the buffers written, nothing uninitialised used."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.peak_memory import HALF, assert_peaks_rise_by_at_most
from tests.kernels.subprocesses import run_python

MALLOC_DEBUG = "libc_malloc_debug.so.0"
# What is freed goes back to the system, or what is measured is in which freed chunk glibc puts the next.
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
CHECKED = {"LD_PRELOAD": MALLOC_DEBUG, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "1"}
PLACEMENTS_OF_EITHER = ("strided", "padding")  # with normalised features and others


def test_nothing_outside_the_inputs_is_read() -> None:
    """By kernels; a byte that is read there on purpose shows that the guard pages guard."""
    kernels = ["end", "start normalize", *PLACEMENTS_OF_EITHER, *(f"{name} normalize" for name in PLACEMENTS_OF_EITHER)]
    process = run_python("-m", "tests.kernels.cpu.guarded_memory", *kernels, "overrun", "underrun")
    assert process.returncode == 0, process.stdout + process.stderr
    ends = dict(line.rsplit(maxsplit=1) for line in process.stdout.splitlines())
    assert ends.pop("overrun") == ends.pop("underrun") == str(-signal.SIGSEGV)
    assert list(ends) == kernels
    assert all(int(agreed) > 0 for agreed in ends.values())


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
    process = run_python(
        "-m", "tests.kernels.cpu.fresh_memory", str(path), *arguments, OMP_NUM_THREADS="2", **environment
    )
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


def test_the_workspace_is_bounded_whatever_the_batch() -> None:
    cases = ["scores", "threads", "slice", "pairs", "gram", "dense", "sparse", "expanded", "maxsim backward"]
    assert_peaks_rise_by_at_most(64, *cases, "both", "both backward", *HALF)


def test_pairs_are_listed_in_slices_where_no_gradient_keeps_them() -> None:
    assert_peaks_rise_by_at_most(24, "candidates", "int32 pairs", "argmax")


def test_attention_pads_the_listed_items_alone() -> None:
    assert_peaks_rise_by_at_most(32, "attention packed", "attention padded")


def test_the_workspace_of_attended_vectors_is_bounded() -> None:
    cases = ["attend forward", "attend backward", "attend bfloat16", "attend candidates", "attend scores"]
    assert_peaks_rise_by_at_most(64, *cases, **FREED_AT_ONCE)


def test_the_workspace_of_gated_attention_is_bounded() -> None:
    """Where all pairs' hidden states would take 1.6 GiB."""
    assert_peaks_rise_by_at_most(64, "gated forward", "gated backward", "gated pairs", **FREED_AT_ONCE)


def test_the_workspace_of_heterogeneous_attention_is_bounded() -> None:
    """Where a layer makes a dozen tensors of all pairs' features, 40 MiB each, or of long items' logits, 132 MiB."""
    assert_peaks_rise_by_at_most(96, "heterogeneous", "heterogeneous long")
    assert_peaks_rise_by_at_most(
        128, "heterogeneous one layer", "heterogeneous words"
    )  # of which a block has so many captions as words


def test_the_workspace_of_attention_pooling_is_bounded() -> None:
    """Of which 32 MiB show in most runs and 128 in some where glibc keeps what is freed."""
    assert_peaks_rise_by_at_most(48, "pool", **FREED_AT_ONCE)
