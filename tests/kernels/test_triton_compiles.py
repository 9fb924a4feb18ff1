"""Every Triton kernel compiles for the GPUs it is for, to matrix instructions, within the chip and its registers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import crossret_kernels
from crossret_kernels import maxsim_scores, scan_scores
from crossret_kernels.backends import INTERPRETED
from tests.kernels.compile_cases import BUILT, FUNCTIONS, compilations
from tests.kernels.offline import SHARED_LIMITS, Launch, compiled, recorded

pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton interprets kernels in this process")
COMPILATIONS = {} if INTERPRETED else compilations()
# Of the products of features, by architecture. Tiles of fewer rows than a warpgroup's may take what Ampere has.
MATRIX_INSTRUCTIONS = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
WARPGROUP_ROWS = 64
# Bytes of stack a thread, nearly all of them spilled registers: on sm_80, on later ones.
STACK_BOUNDS = {
    "scan_forward": (2048, 512),
    "scan_backward": (3584, 2560),
    "feature_gradients": (512, 64),
    "long_forward": (640, 1024),
    "long_backward": (512, 1024),
    "item_gram_gradients": (1280, 512),
    "add_gram_products": (512, 128),
    "long_feature_gradients": (64, 256),
    "best_of_tiles": (384, 512),
    "best_of_items": (448, 192),
}
# IEEE products are made of multiply-adds, those after them of two or three TF32 products.
IEEE_STACK_BOUNDS = {
    "scan_forward": (7168, 1536),
    "scan_backward": (7168, 2560),
    "feature_gradients": (2048, 64),
    "long_forward": (640, 640),
    "long_backward": (512, 512),
}
OTHERS_STACK_BOUNDS = (64, 64)


def stack_bound(launch: Launch, architecture: int) -> int:
    bounds = IEEE_STACK_BOUNDS if launch.precision == "ieee" else STACK_BOUNDS
    return bounds.get(launch.name, OTHERS_STACK_BOUNDS)[architecture > 80]


@pytest.mark.parametrize("name", COMPILATIONS)
def test_compiles(name: str, tmp_path: Path) -> None:
    launch, architecture = COMPILATIONS[name]
    result = compiled(launch, architecture, tmp_path)
    assert result.shared <= SHARED_LIMITS[architecture], f"{launch.constants}: {result}"
    assert result.stack <= stack_bound(launch, architecture), f"{launch.constants}: {result}"
    if launch.precision not in (None, "ieee"):
        wanted = {MATRIX_INSTRUCTIONS[architecture]}
        if launch.rows < WARPGROUP_ROWS:
            wanted.add(MATRIX_INSTRUCTIONS[80])
        assert any(instruction in result.ptx for instruction in wanted), launch.constants


def kernels() -> set[str]:
    """Those that are launched, not called by others: they ask which program they are."""
    package = Path(crossret_kernels.__file__).parent
    found = set()
    for path in [*package.glob("**/triton*.py"), *package.glob("**/triton/*.py")]:
        module = importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
        for name, value in vars(module).items():
            if isinstance(value, JITFunction) and value.__module__ == module.__name__ and "program_id" in value.src:
                found.add(name)
    return found


def test_every_kernel_is_compiled() -> None:
    assert set(BUILT) <= set(FUNCTIONS), "an operation without a case"
    assert kernels() == {launch.name for launch, _ in COMPILATIONS.values()}


@pytest.mark.parametrize(
    ("dim", "options", "rows"),
    [
        (1024, {}, {256}),
        (1024, {"normalize": True}, {128}),
        (1024, {"return_argmax": True}, {256, 128}),
        (1000, {}, {128}),
        (128, {}, {128}),
    ],
)
def test_sum_max_takes_its_largest_tile_for_scores_alone(dim: int, options: dict[str, Any], rows: set[int]) -> None:
    """What else a thread keeps, beside such a tile, lies in memory. Of 256 rows 5 × 50 take more than 2 × 50 of 128."""
    regions, words = (torch.zeros(n, rows, dim, dtype=torch.bfloat16) for n, rows in ((24, 50), (40, 20)))
    with recorded() as launches:
        maxsim_scores(regions, words, direction="i2t", backend="triton", **options)
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


def test_long_items_gradients_are_compiled_once_for_rectangles_of_any_size() -> None:
    compiled_for = []
    for n_captions in (1, 16, 17):  # tiles of their own, side by side
        sides = [torch.zeros(n, rows, 64, requires_grad=True) for n, rows in ((3, 130), (n_captions, 250))]
        with recorded() as launches:
            scores = scan_scores(*sides, backend="triton")
            torch.autograd.grad(scores, sides, torch.zeros_like(scores))
        compiled_for.append({launch.key for launch in launches if launch.name != "row_norms"})
    assert compiled_for[0] == compiled_for[1] == compiled_for[2]


def a_launch() -> Launch:
    return next(launch for launch, _ in COMPILATIONS.values() if launch.name == "gram_tiles")


def test_launches_are_specialised_as_triton_does() -> None:
    launch = a_launch()
    names = [parameter.name for parameter in launch.kernel.params]
    changed = {"first_tile": 1, "per_item": 1, "D": 1024, "item_stride": 36 * 1000 + 1, "row_stride": 2**40}
    arguments = launch.arguments | changed
    source, options, parts = Launch(launch.kernel, arguments, launch.grid).specialised(90)
    assert parts["signature"]["contexts"] == "*bf16"
    assert parts["signature"]["D"] == parts["signature"]["item_stride"] == "i32"
    assert parts["signature"]["row_stride"] == "i64"
    assert parts["constants"][names.index("per_item"),] == 1
    assert parts["signature"]["first_tile"] == "i32"  # by do_not_specialize
    divisible = {names[place] for (place,), attributes in source.attrs.items() if attributes}
    assert {"contexts", "D", "row_stride"} <= divisible
    assert "item_stride" not in divisible
    assert options["num_warps"] == arguments["num_warps"]
    assert Launch(launch.kernel, arguments, launch.grid).key != launch.key
