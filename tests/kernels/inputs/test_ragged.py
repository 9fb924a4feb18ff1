"""Ragged inputs: the three layouts agree, any strides serve, and every bad input is named with its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_scores, scan_scores
from tests.kernels.told import told

FUNCTIONS = (scan_scores, maxsim_scores)
N_IMAGES, N_CAPTIONS, R, W, D = 3, 4, 5, 6, 16
REGION_LENGTHS, WORD_LENGTHS = [5, 1, 4], [6, 3, 1, 2]

functions = pytest.mark.parametrize("function", FUNCTIONS)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(N_IMAGES, R, D, generator=generator),
        torch.randn(N_CAPTIONS, W, D, generator=generator),
    )


REGIONS, WORDS = batch()
PACKED = REGIONS.reshape(-1, D)


def items(padded: Tensor, lengths: list[int]) -> list[Tensor]:
    return [item[:length] for item, length in zip(padded, lengths, strict=True)]


@functions
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, "list", "numpy"])
def test_lengths_of_every_integer_type(function: Callable[..., Tensor], dtype: torch.dtype | str) -> None:
    lengths: list[Any] = [REGION_LENGTHS, WORD_LENGTHS]
    if dtype == "numpy":
        lengths = [[np.int32(length) for length in side] for side in lengths]
    elif isinstance(dtype, torch.dtype):
        lengths = [torch.tensor(side, dtype=dtype) for side in lengths]
    expected = torch.stack(
        [
            torch.stack([function(image[None], caption[None])[0, 0] for caption in items(WORDS, WORD_LENGTHS)])
            for image in items(REGIONS, REGION_LENGTHS)
        ]
    )
    # A pair alone may round otherwise.
    torch.testing.assert_close(function(REGIONS, WORDS, *lengths), expected, rtol=1e-5, atol=1e-5)


def strided(kind: str) -> tuple[Tensor, Tensor]:
    """A leaf, and a (3, 5, 16) view of it with unusual strides."""
    shapes = {
        "transposed": (N_IMAGES, D, R),
        "swapped items and rows": (R, N_IMAGES, D),
        "slice of D": (N_IMAGES, R, 3 * D),
        "every other D": (N_IMAGES, R, 2 * D),
        "every other row": (N_IMAGES, 2 * R, D),
        "every other item": (2 * N_IMAGES, R, D),
        "expanded items": (1, R, D),
        "expanded rows": (N_IMAGES, 1, D),
        "expanded D": (N_IMAGES, R, 1),
    }
    leaf = torch.randn(shapes[kind], generator=torch.Generator().manual_seed(1)).requires_grad_()
    view = {
        "transposed": lambda: leaf.mT,
        "swapped items and rows": lambda: leaf.transpose(0, 1),
        "slice of D": lambda: leaf[..., D + 1 : 2 * D + 1],
        "every other D": lambda: leaf[..., ::2],
        "every other row": lambda: leaf[:, ::2],
        "every other item": lambda: leaf[1::2],
    }.get(kind, lambda: leaf.expand(N_IMAGES, R, D))()
    return leaf, view


STRIDES = (
    *("transposed", "swapped items and rows", "slice of D", "every other D", "every other row", "every other item"),
    *("expanded items", "expanded rows", "expanded D"),
)


@functions
@pytest.mark.parametrize(("backend", "layout"), [("cpu", "padded"), ("cpu", "list"), ("torch", "padded")])
@pytest.mark.parametrize("kind", STRIDES)
def test_strides_do_not_matter(function: Callable[..., Tensor], backend: str, layout: str, kind: str) -> None:
    leaf, view = strided(kind)
    dense = view.detach().clone().requires_grad_()

    def run(regions: Tensor) -> Tensor:
        if layout == "list":
            scores = function(items(regions, REGION_LENGTHS), WORDS, normalize=True, backend=backend)
        else:
            scores = function(regions, WORDS, REGION_LENGTHS, normalize=True, backend=backend)
        scores.square().sum().backward()
        return scores

    assert torch.equal(run(view), run(dense))
    (expected,) = torch.autograd.grad(view, leaf, dense.grad)
    torch.testing.assert_close(leaf.grad, expected)


Case = tuple[str, Callable[[], tuple[Any, ...]], type[Exception], str]

ERRORS: tuple[Case, ...] = (
    # features
    ("nothing", lambda: (None, WORDS), TypeError, "regions must be a (n, L, D) tensor"),
    ("two dimensions", lambda: (REGIONS[0], WORDS), ValueError, "regions must have shape (n, L, D), got (5, 16)"),
    ("integers", lambda: (REGIONS.long(), WORDS), TypeError, "regions must be float32, float64, bfloat16 or float16"),
    ("complex", lambda: (REGIONS, WORDS.to(torch.complex64)), TypeError, "words must be float32"),
    ("sparse", lambda: (REGIONS.to_sparse(), WORDS), TypeError, "regions must be a dense tensor, not a torch.sparse"),
    ("mkldnn", lambda: (REGIONS, WORDS.to_mkldnn()), TypeError, "words must be a dense tensor, not a torch._mkldnn"),
    ("no D", lambda: (REGIONS[..., :0], WORDS[..., :0]), ValueError, "regions has D = 0"),
    ("no rows", lambda: (REGIONS, WORDS[:, :0]), ValueError, "words has no rows (shape (4, 0, 16)): caption 0"),
    # together
    ("D", lambda: (REGIONS, WORDS[..., :8]), ValueError, "regions have D = 16 but words have D = 8"),
    ("dtypes", lambda: (REGIONS, WORDS.half()), TypeError, "regions are torch.float32 but words are torch.float16"),
    ("devices", lambda: (REGIONS.to("meta"), WORDS), ValueError, "regions are on meta but words are on cpu"),
    ("no device", lambda: (REGIONS.to("meta"), WORDS.to("meta")), ValueError, "regions and words are on the meta"),
    # lengths
    ("empty image", lambda: (REGIONS, WORDS, [5, 0, 1]), ValueError, "region_lengths[1] is 0: every image needs"),
    ("empty caption", lambda: (REGIONS, WORDS, None, [1, 1, 1, 0]), ValueError, "word_lengths[3] is 0: every caption"),
    ("too long", lambda: (REGIONS, WORDS, [5, 5, 6]), ValueError, "region_lengths[2] is 6: it must lie in 1..5"),
    ("negative", lambda: (REGIONS, WORDS, None, [6, -2, 1, 1]), ValueError, "word_lengths[1] is -2: it must lie in"),
    ("huge", lambda: (REGIONS, WORDS, [1, 2**70, 1]), ValueError, f"region_lengths[1] is {2**70}: it does not fit"),
    ("too few", lambda: (REGIONS, WORDS, [5, 5]), ValueError, "region_lengths must hold one length for each of 3"),
    ("a number", lambda: (REGIONS, WORDS, 3), TypeError, "region_lengths must be an integer tensor or a list"),
    ("float list", lambda: (REGIONS, WORDS, [5, 1.0, 2]), TypeError, "region_lengths[1] must be an integer, not float"),
    ("bool list", lambda: (REGIONS, WORDS, None, [1, True, 1, 1]), TypeError, "word_lengths[1] must be an integer"),
    ("float tensor", lambda: (REGIONS, WORDS, torch.ones(3)), TypeError, "region_lengths must be integers"),
    ("of packed", lambda: ((PACKED, torch.tensor([0, 15])), WORDS, [15]), ValueError, "region_lengths goes with"),
    # packed
    ("start", lambda: ((PACKED, torch.tensor([1, 15])), WORDS), ValueError, "regions[1] (cu_seqlens) must begin"),
    ("end", lambda: (REGIONS, (PACKED, torch.tensor([0, 14]))), ValueError, "words[1] (cu_seqlens) ends at 14 but"),
    ("falling", lambda: ((PACKED, torch.tensor([0, 9, 5, 15])), WORDS), ValueError, "regions[1] (cu_seqlens)[1] is -4"),
    ("float offsets", lambda: ((PACKED, torch.tensor([0.0, 15])), WORDS), TypeError, "regions[1] (cu_seqlens) must"),
    ("flat offsets", lambda: ((PACKED, torch.tensor([[0, 15]])), WORDS), ValueError, "regions[1] (cu_seqlens) must"),
    ("no values", lambda: (([1.0], torch.tensor([0, 15])), WORDS), TypeError, "regions[0] must be the tensor of"),
    ("padded rows", lambda: ((REGIONS, torch.tensor([0, 15])), WORDS), ValueError, "regions[0] must have shape (rows"),
    # lists
    ("no items", lambda: ([], WORDS), ValueError, "regions is an empty list"),
    ("no tensor", lambda: (REGIONS, [WORDS[0], 3]), TypeError, "words[1] must be a (L, D) tensor, not int"),
    ("padded item", lambda: ([PACKED, REGIONS], WORDS), ValueError, "regions[1] must have shape (L, D), got (3, 5"),
    ("empty item", lambda: ([PACKED, PACKED[:0]], WORDS), ValueError, "regions[1] is empty: every image needs"),
    ("other D", lambda: (REGIONS, [PACKED, PACKED[:, :8]]), ValueError, "words[1] has D = 8 but words[0] has D = 16"),
    ("other dtype", lambda: ([PACKED, PACKED.half()], WORDS), TypeError, "regions[1] is torch.float16 but regions[0]"),
    ("nested", lambda: ([torch.nested.nested_tensor([PACKED])], WORDS), TypeError, "regions[0] must be a dense tensor"),
    ("other device", lambda: ([PACKED, PACKED.to("meta")], WORDS), ValueError, "regions[1] is on meta but regions[0]"),
)  # fmt: skip
test_bad_input_is_named_with_its_place = pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")(
    told(lambda function, given: function(*given()), {name: case for name, *case in ERRORS}, *FUNCTIONS)
)


MANY = 500
MANY_ROWS = torch.ones(MANY, 2, 4)


def many(integers: Tensor, place: int, value: int) -> Tensor:
    return integers.index_fill(0, torch.tensor(place), value)


ONES, UP_TO = torch.ones(MANY).long(), torch.arange(MANY + 1)
MANY_ERRORS: tuple[tuple[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]], str], ...] = (
    (lambda: ((MANY_ROWS, MANY_ROWS[:1], many(ONES, 400, 0)), {}), "region_lengths[400] is 0"),
    (lambda: ((MANY_ROWS, MANY_ROWS[:1], many(ONES, 400, 3)), {}), "region_lengths[400] is 3: it"),
    (lambda: (((MANY_ROWS[:, 0], many(UP_TO, 400, 401)), MANY_ROWS[:1]), {}), "regions[1] (cu_seqlens)[400] is 0"),
    (lambda: (((MANY_ROWS[:, 0], many(UP_TO, MANY, 9)), MANY_ROWS[:1]), {}), "ends at 9 but regions[0]"),
    (lambda: ((MANY_ROWS, MANY_ROWS[:1]), {"pairs": torch.stack([many(UP_TO[:-1], 400, MANY)] * 2, 1)}),
     "pairs[400] names image 500"),
    (lambda: ((MANY_ROWS, MANY_ROWS[:1]), {"candidates": many(UP_TO[:-1], 400, -1)[None]}),
     "candidates[0][400] names image -1"),
)  # fmt: skip
test_many_integers_are_checked_as_few_are = told(
    lambda function, call: function(*call()[0], **call()[1]),
    {message: (call, ValueError, message) for call, message in MANY_ERRORS},
    *FUNCTIONS,
)
