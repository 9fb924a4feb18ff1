"""Every Triton kernel compiles for the GPUs it is for, to matrix instructions, within the chip and its registers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from triton.runtime.jit import JITFunction

import crossret_kernels
from crossret_kernels.backends import INTERPRETED
from tests.kernels.gpu.compile_cases import (
    BUILT,
    FUNCTIONS,
    WITHOUT_PRODUCTS,
    compilations,
    patches,
    with_little_memory,
)
from tests.kernels.gpu.offline import SHARED_LIMITS, Launch, compiled, launches_of, shared_memory_of

pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
COMPILATIONS = {} if INTERPRETED else compilations()
LITTLE = {} if INTERPRETED else with_little_memory()
# Of the products of features, by architecture. Tiles of fewer rows than a warpgroup's may take what Ampere has.
MATRIX_INSTRUCTIONS = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
WARPGROUP_ROWS = 64
# Bytes of stack a thread, nearly all of them spilled registers: on sm_80, on later ones. They hold for Triton 3.6 to
# 3.9: `make tritons`; what is said of a version beside a bound is the most that it takes.
STACK_BOUNDS = {
    "attend": (320, 512),
    "similarity_gradients": (1280, 1088),
    "gram_gradients": (512, 1152),
    "attend_pairs": (128, 128),
    "pair_gradients": (256, 192),  # 160 of 3.8, which has loads further ahead than others on sm_90
    "sum_pairs": (512, 512),
    "best_of_tiles": (1280, 1920),
    "best_of_items": (1408, 1024),
    "context_gradients": (128, 128),
}
# IEEE products are made of multiply-adds, those after them of two or three TF32 products.
IEEE_STACK_BOUNDS = {
    "attend": (1920, 256),
    "attend_pairs": (512, 448),  # 416 of 3.7 on sm_90
    "best_of_tiles": (384, 448),  # of soft maxima 360 and 424 of 3.6, 96 of 3.9 on sm_90
    "pair_gradients": (1408, 1024),  # 1352 of 3.8 on sm_80, 1136 of 3.6
    # On sm_80 1512 of 3.6's assembler, as 3.9's takes 32 registers there; on sm_90 1048 of 3.6, 1000 of 3.9.
    "similarity_gradients": (4608, 1056),
    "gram_gradients": (512, 320),
}
OTHERS_STACK_BOUNDS = (128, 64)
# Kernels whose IEEE products, which are made of multiply-adds, read tiles where lanes meet in one bank. No other does:
# the dearest such accesses made a kernel six times slower.
COLLIDING_IEEE = {
    "attend_pairs", "best_of_tiles", "matching_gradients", "soft_gradients",
}  # fmt: skip


def stack_bound(launch: Launch, architecture: int) -> int:
    bounds = IEEE_STACK_BOUNDS if launch.precision in ("ieee", "tf32x3") else STACK_BOUNDS
    return bounds.get(launch.name, OTHERS_STACK_BOUNDS)[architecture > 80]


@pytest.mark.parametrize("name", COMPILATIONS)
def test_compiles(name: str, tmp_path: Path) -> None:
    launch, architecture = COMPILATIONS[name]
    result = compiled(launch, architecture, tmp_path)
    assert result.shared <= SHARED_LIMITS[architecture] * 2**10, f"{launch.kind}: {result}"
    assert result.stack <= stack_bound(launch, architecture), f"{launch.kind}: {result}"
    assert result.registers <= (launch.registers or 255), f"{launch.kind}: {result}"
    # Of pooling all products are IEEE's, and no precision is named.
    if not (launch.precision in ("ieee", None) and launch.name in COLLIDING_IEEE):
        assert not result.collisions(), f"{launch.kind}: {result.collisions()}"
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


def test_tiles_of_zeros_are_made_by_full() -> None:
    """Triton 3.6 and 3.7 take no sizes from named tuples in `tl.zeros`."""
    package = Path(crossret_kernels.__file__).parent
    full, found = 0, []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tl":
                full += node.attr == "full"
                if node.attr == "zeros":
                    found.append(f"{path.relative_to(package)}:{node.lineno}")
    assert full
    assert not found, f"tl.full instead: {found}"


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
