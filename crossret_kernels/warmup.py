"""``python -m crossret_kernels.warmup``: compiles the Triton kernels that a training will use, ahead of it.

What is compiled depends on widths, dtype, D and options, not on lengths or how many items there are, and stays in
Triton's cache on disk for later processes on like devices. Words padded to each batch's longest caption have several
widths, of which those up to the next power of two share nearly everything.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from crossret_kernels import backends, infonce_loss, maxsim_scores, scan_scores, sigmoid_loss, triplet_loss

if backends.TRITON_MISSING is None:
    from crossret_kernels.gpu.triton_launch import n_compiled

DEVICE = torch.device("cuda")
DTYPES = ("float32", "bfloat16", "float16")
SCORES: dict[str, Callable[..., Any]] = {"scan": scan_scores, "maxsim": maxsim_scores}
# With how many numbers they take beside the scores.
LOSSES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "triplet_loss": (triplet_loss, 0),
    "infonce_loss": (infonce_loss, 1),
    "sigmoid_loss": (sigmoid_loss, 2),
}


def option(text: str) -> tuple[str, Any]:
    """A keyword argument: what is no number, list, True, False or None is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, not {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m crossret_kernels.warmup",
        description="Compile the Triton kernels that a training will use, forward and backward.",
        epilog="Example: python -m crossret_kernels.warmup scan direction=i2t pooling=lse --dtype bfloat16",
    )
    parser.add_argument("operation", choices=(*SCORES, *LOSSES))
    parser.add_argument("options", nargs="*", type=option, metavar="NAME=VALUE", help="the function's arguments")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the features, or of the loss's scores")
    parser.add_argument("--dim", type=int, default=1024, help="D of the features (default: %(default)s)")
    parser.add_argument("--regions", type=int, nargs="+", default=[36], help="padded widths (default: 36)")
    parser.add_argument("--words", type=int, nargs="+", default=[16, 32, 64], help="likewise (default: 16 32 64)")
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--packed", action="store_true", help="features are packed, not padded; widths are the longest")
    layout.add_argument("--masks", action="store_true", help="words have a mask, regions lengths")
    parser.add_argument("--pairs", action="store_true", help="pairs or candidates are scored, not all")
    parser.add_argument("--batch", type=int, default=128, help="items of either side (default: %(default)s)")
    return parser.parse_args(arguments)


def score(operation: str, widths: tuple[int, int], args: argparse.Namespace) -> None:
    """Scores of a batch, and their gradients."""
    sides: list[Any] = []
    features: list[Tensor] = []
    for width in widths:
        rows = (args.batch * width,) if args.packed else (args.batch, width)
        values = torch.zeros(*rows, args.dim, dtype=getattr(torch, args.dtype), device=DEVICE, requires_grad=True)
        features.append(values)
        offsets = torch.arange(0, args.batch * width + 1, width, device=DEVICE)
        sides.append((values, offsets) if args.packed else values)
    keywords = dict(args.options)
    if args.masks:
        keywords["word_mask"] = torch.ones(args.batch, widths[1], dtype=torch.bool, device=DEVICE)
    if args.pairs:
        keywords["pairs"] = torch.zeros(args.batch, 2, dtype=torch.int64, device=DEVICE)
    scores = SCORES[operation](*sides, backend="triton", **keywords)
    torch.autograd.grad(scores.sum(), features)


def lose(args: argparse.Namespace) -> None:
    """The loss of a batch's scores, and the gradients of these and of the numbers beside them."""
    loss, count = LOSSES[args.operation]
    leaves = [torch.zeros(args.batch, args.batch, dtype=getattr(torch, args.dtype), device=DEVICE)]
    leaves += [torch.zeros((), device=DEVICE) for _ in range(count)]
    for leaf in leaves:
        leaf.requires_grad_()
    torch.autograd.grad(loss(*leaves, backend="triton", **dict(args.options)).sum(), leaves)


def steps(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """A call that kernels are compiled for, and the function that makes it."""
    if args.operation in LOSSES:
        yield f"{args.operation}, {args.dtype}", lambda: lose(args)
        return
    for regions in args.regions:
        for words in args.words:
            description = f"{args.operation}_scores, {args.dtype}, D = {args.dim}, {regions} regions, {words} words"
            yield description, lambda widths=(regions, words): score(args.operation, widths, args)  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 2 where there is no device to compile for."""
    args = parsed(arguments)
    reason = backends.unsupported_reason("triton", DEVICE, getattr(torch, args.dtype))
    if reason is not None:
        print(f"nothing can be compiled: {reason}", file=sys.stderr)
        return 2
    every = list(steps(args))
    for number, (description, step) in enumerate(every, 1):
        print(f"[{number}/{len(every)}] {description}: ", end="", flush=True)
        count, start = n_compiled(), time.perf_counter()
        step()
        print(f"{n_compiled() - count} kernels in {time.perf_counter() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
