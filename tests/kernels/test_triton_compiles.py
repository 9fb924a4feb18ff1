"""Every Triton kernel compiles for the GPUs it is for, to matrix instructions, within the chip and its registers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import crossret_kernels
from crossret_kernels import maxsim_argmax, maxsim_scores, scan_scores
from crossret_kernels.backends import INTERPRETED
from tests.kernels.compile_cases import BUILT, FUNCTIONS, WITHOUT_PRODUCTS, compilations, patches, with_little_memory
from tests.kernels.offline import SHARED_LIMITS, Launch, compiled, launches_of, recorded, shared_memory_of

pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
COMPILATIONS = {} if INTERPRETED else compilations()
LITTLE = {} if INTERPRETED else with_little_memory()
# Of the products of features, by architecture. Tiles of fewer rows than a warpgroup's may take what Ampere has.
MATRIX_INSTRUCTIONS = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
WARPGROUP_ROWS = 64
# Bytes of stack a thread, nearly all of them spilled registers: on sm_80, on later ones. They hold for Triton 3.6 to
# 3.9: `make tritons`.
STACK_BOUNDS = {
    "attend": (256, 512),
    "similarity_gradients": (1280, 1088),
    "gram_gradients": (512, 1152),
    "best_of_tiles": (1280, 1920),
    "best_of_items": (1408, 1024),
    "context_gradients": (128, 128),
}
# IEEE products are made of multiply-adds, those after them of two or three TF32 products.
IEEE_STACK_BOUNDS = {
    "attend": (1920, 256),
    "similarity_gradients": (4608, 704),  # 1512 of 3.6's assembler on sm_80: 3.9's takes 32 registers there
    "gram_gradients": (512, 320),
}
OTHERS_STACK_BOUNDS = (128, 64)


def stack_bound(launch: Launch, architecture: int) -> int:
    bounds = IEEE_STACK_BOUNDS if launch.precision in ("ieee", "tf32x3") else STACK_BOUNDS
    return bounds.get(launch.name, OTHERS_STACK_BOUNDS)[architecture > 80]


@pytest.mark.parametrize("name", COMPILATIONS)
def test_compiles(name: str, tmp_path: Path) -> None:
    launch, architecture = COMPILATIONS[name]
    result = compiled(launch, architecture, tmp_path)
    assert result.shared <= SHARED_LIMITS[architecture] * 2**10, f"{launch.kind}: {result}"
    assert result.stack <= stack_bound(launch, architecture), f"{launch.kind}: {result}"
    if launch.name not in WITHOUT_PRODUCTS and launch.precision != "ieee":
        wanted = {MATRIX_INSTRUCTIONS[architecture]}
        if launch.rows < WARPGROUP_ROWS:
            wanted.add(MATRIX_INSTRUCTIONS[80])
        assert any(instruction in result.ptx for instruction in wanted), launch.kind


@pytest.mark.parametrize("name", LITTLE)
def test_fits_little_shared_memory(name: str, tmp_path: Path) -> None:
    """On sm_86 too, for which the compiler shares memory out as for sm_89."""
    launch, architecture = LITTLE[name]
    assert shared_memory_of(launch, architecture, tmp_path) <= SHARED_LIMITS[architecture], launch.kind


def test_long_queries_are_normalised_beside_a_block_of_contexts(tmp_path: Path) -> None:
    """Of another number than the queries that a step takes: both sides have scales."""
    case = patches("bfloat16", options={"direction": "i2t", "normalize": True})
    (launch,) = (launch for launch in launches_of(case.call) if launch.name == "query_statistics")
    assert launch.kind.C > 32
    assert shared_memory_of(launch, 90, tmp_path) <= SHARED_LIMITS[90]


def kernels() -> set[str]:
    """Those that are launched, not called by others: they take sizes that change from call to call."""
    package = Path(crossret_kernels.__file__).parent
    found = set()
    for path in package.glob("*/triton/*.py"):
        module = importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
        for name, value in vars(module).items():
            if isinstance(value, JITFunction) and value.__module__ == module.__name__ and value.do_not_specialize:
                found.add(name)
    return found


def test_every_kernel_is_compiled() -> None:
    assert set(BUILT) <= set(FUNCTIONS), "an operation without a case"
    assert kernels() == {launch.name for launch, _ in COMPILATIONS.values()}


@pytest.mark.parametrize(
    ("dim", "function", "normalize", "rows"),
    [
        (1024, maxsim_scores, False, {256}),
        (1024, maxsim_scores, True, {128}),
        (1024, maxsim_argmax, False, {256, 128}),
        (1000, maxsim_scores, False, {128}),
        (128, maxsim_scores, False, {128}),
    ],
)
def test_sum_max_takes_its_largest_tile_for_scores_alone(
    dim: int, function: Callable[..., Any], normalize: bool, rows: set[int]
) -> None:
    """What else a thread keeps, beside such a tile, lies in memory. Of 256 rows 5 × 50 take more than 2 × 50 of 128."""
    regions, words = (torch.zeros(n, rows, dim, dtype=torch.bfloat16) for n, rows in ((24, 50), (40, 20)))
    with recorded() as launches:
        function(regions, words, direction="i2t", normalize=normalize, backend="triton")
    assert {launch.rows for launch in launches if launch.name == "best_of_tiles"} == rows


@pytest.mark.parametrize("listed", [False, True])
def test_sum_max_is_compiled_once_for_batches_of_any_size(listed: bool) -> None:
    compiled_for = []
    for n_images, n_captions, width in ((24, 40, 20), (32, 48, 32), (33, 49, 19)):
        sides = [torch.zeros(n, width, 128, requires_grad=True) for n in (n_images, n_captions)]
        lengths = [torch.full((len(side),), 17) for side in sides]
        pairs = torch.zeros(7, 2, dtype=torch.int64) if listed else None
        with recorded() as launches:
            scores = maxsim_scores(*sides, *lengths, pairs=pairs, backend="triton")
            torch.autograd.grad(scores, sides, torch.zeros_like(scores))
        compiled_for.append({launch.key for launch in launches})
    assert max(compiled_for, key=len) == set().union(*compiled_for)  # the smallest batch has no runs to be summed


@pytest.mark.parametrize("listed", [False, True])
def test_attention_is_compiled_once_for_batches_of_any_size(listed: bool) -> None:
    """Kept kernels are found by kind and key alone: what Triton compiles must not depend on anything else."""
    launches: dict[tuple[object, ...], set[str]] = {}
    for n_images, n_captions, longest, empty in ((24, 40, 20, None), (33, 49, 19, 1), (16, 1, 17, -1)):
        sides = [torch.zeros(n, rows, 100, requires_grad=True) for n, rows in ((n_images, 36), (n_captions, longest))]
        lengths = [torch.randint(15, side.size(1) + 1, (len(side),)) for side in sides]
        pairs = torch.zeros(7, 2, dtype=torch.int64) if listed else None
        with recorded() as made:
            scores = scan_scores(*sides, *lengths, pairs=pairs, empty_score=empty, backend="triton")
            torch.autograd.grad(scores, sides, torch.zeros_like(scores))
        for launch in made:
            launches.setdefault((launch.name, launch.kind, launch.dtype), set()).add(launch.key)
    assert all(len(keys) == 1 for keys in launches.values()), launches.keys()
