"""Every operation of every backend once against float64 made on the device, by as many processes as there are cores.

What they compile on the way is kept for all that follows. An error is ‖difference‖ / ‖result‖, of scores or of
gradients; its bound is what the papers' formulas in PyTorch of that dtype lose, twice of scores and three times of
gradients, and some units in the last place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.inputs import DTYPES, precision
from benchmarks.gpu.lines import tell
from crossret_kernels import (
    AttentionStep,
    GatedAttention,
    HeterogeneousLayer,
    backends,
    gated_attention_scores,
    heterogeneous_scores,
    maxsim_argmax,
    maxsim_scores,
    scan_attend,
    scan_scores,
    triplet_loss,
)
from tests.kernels.gated_attention.batches import gated_parameters
from tests.kernels.heterogeneous_attention.calls import make_layers

UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "tf32": 2.0**-10, "float32": 2.0**-20}  # a few of the last place
NORMS = ("clipped_l2norm", "softmax", "l1norm", "no_norm")
# Precisions of stacked cross attention with a backend that multiplies in them: some, and the others.
SOME = ("bfloat16", "triton"), ("bfloat16", "cuda"), ("float32", "triton"), ("tf32", "cuda")
OTHERS = ("tf32", "triton"), ("float16", "triton"), ("float16", "cuda")


class Check(NamedTuple):
    """A call: its operation, shape (longest items of either side, D), options, precision, and by which backend."""

    operation: str
    shape: tuple[int, int, int]
    options: tuple[tuple[str, Any], ...]
    precision: str
    backend: str
    gradients: bool = True
    items: tuple[int, int] = (12, 17)  # images and captions

    def __str__(self) -> str:
        options = " ".join(str(value) for _, value in self.options)
        return f"{self.backend} {self.operation} {'×'.join(map(str, self.shape))} {options} {self.precision}".replace(
            "  ", " "
        )


def checks() -> Iterator[Check]:
    """Dear ones to compile first."""
    lse = ("direction", "t2i"), ("pooling", "lse")
    avg = ("direction", "i2t"), ("pooling", "avg"), ("lambda_softmax", 4.0)
    for options, (name, backend) in product((lse, avg), (*SOME, *OTHERS)):
        yield Check("scan_scores", (36, 20, 1024), options, name, backend)
    for shape, name in product(((36, 20, 512), (49, 49, 1024)), ("bfloat16", "tf32", "float32")):
        yield Check("gated_attention_scores", shape, (), name, "torch")
        yield Check("heterogeneous_scores", shape, (("heads", 8),), name, "triton")
    for name, backend in SOME:
        for options in (lse, avg):
            yield Check("scan_scores", (197, 77, 1024), options, name, backend)
            yield Check("scan_scores", (36, 20, 1024), (*options, ("listed", True)), name, backend)
    for norm, way, (name, backend) in product(NORMS, (lse, avg), SOME):
        yield Check(
            "scan_scores", (20, 40, 100), (*way, ("raw_feature_norm", norm), ("normalize", True)), name, backend
        )
    for name, options in product(("bfloat16", "tf32", "float32"), (lse, avg)):
        yield Check("scan_attend", (36, 20, 1024), options, name, "triton")
    for shape, way, name in product(
        ((300, 32, 128), (180, 32, 128), (300, 128, 512), (80, 80, 128), (1024, 1024, 128), (36, 20, 1024)),
        ("t2i", "i2t"), ("bfloat16", "float32"),
    ):  # fmt: skip
        items = (3, 4) if max(shape) > 1000 else (12, 17)
        yield Check("maxsim_scores", shape, (("direction", way),), name, "triton", items=items)
    for name in DTYPES:
        yield Check("maxsim_argmax", (300, 32, 128), (), name, "triton", gradients=False)
    for negatives, name in product(("hardest", "sum", "softmax"), ("bfloat16", "float32")):
        yield Check("triplet_loss", (700, 700, 0), (("negatives", negatives),), name, "triton")


def features_of(check: Check, device: torch.device, dtype: torch.dtype, of: torch.dtype) -> Callable[..., Tensor]:
    """Draws features of a dtype that `of` can hold, the same every time."""
    draw = torch.Generator(device).manual_seed(0)
    plain = check.operation == "triplet_loss"

    def features(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=draw, device=device)
        values = values if plain else torch.nn.functional.normalize(values, dim=-1)
        return values.to(of).to(dtype).requires_grad_(check.gradients)

    return features


def prepared(
    check: Check, dtype: torch.dtype, backend: str, device: torch.device, of: torch.dtype
) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """Leaves of the gradients, and the call."""
    sides, call = CALLS[check.operation](check, features_of(check, device, dtype, of), backend)
    return sides, call


def made(check: Check, dtype: torch.dtype, backend: str, device: torch.device, of: torch.dtype) -> list[Tensor]:
    """Results of the call and gradients of their weighted sum, as float64."""
    sides, call = prepared(check, dtype, backend, device, of)
    result = call()
    if not check.gradients:
        return [result.detach().double()]
    draw = torch.Generator(device).manual_seed(1)
    weights = torch.randn(result.shape, generator=draw, device=device, dtype=torch.float64)
    grads = torch.autograd.grad((result.double() * weights).sum(), sides)
    return [result.detach().double(), torch.cat([grad.double().flatten() for grad in grads])]


def _two_sided(function: Callable[..., Any]) -> Callable[..., Any]:
    def prepare(
        check: Check, features: Callable[..., Tensor], backend: str
    ) -> tuple[list[Tensor], Callable[[], Tensor]]:
        options = dict(check.options)
        longest, dim = check.shape[:2], check.shape[2]
        counts = check.items
        sides = [features(n, rows, dim) for n, rows in zip(counts, longest, strict=True)]
        lengths = [torch.randint(max(1, rows // 3), rows + 1, (n,), generator=torch.Generator().manual_seed(n))
                   for n, rows in zip(counts, longest, strict=True)]  # fmt: skip
        if options.pop("listed", False) or function is scan_attend:
            draw = torch.Generator().manual_seed(3)
            options["pairs"] = torch.stack([torch.randint(n, (40,), generator=draw) for n in counts], 1)
        if function is gated_attention_scores:
            options |= gated_options(sides, dim)
        if function is heterogeneous_scores:
            like = {"device": sides[0].device, "dtype": sides[0].dtype}
            options["layers"] = [HeterogeneousLayer(*(x.to(**like) for x in layer)) for layer in make_layers(1, dim)]
            lengths = []  # whose rows behind them NaN would be told apart by

        def call() -> Tensor:
            result = function(*sides, *lengths, backend=backend, **options)
            if function is maxsim_argmax:
                return result.indices
            return result.attended if function is scan_attend else result

        return sides, call

    return prepare


def gated_options(sides: list[Tensor], dim: int) -> dict[str, Any]:
    """Parameters and contexts of SMAN's gate."""
    like = {"device": sides[0].device, "dtype": sides[0].dtype}
    parameters = gated_parameters(dim, dim, dim, dim, dim, torch.Generator().manual_seed(1))

    def moved(part: Any) -> Any:
        return AttentionStep(*map(moved, part)) if isinstance(part, AttentionStep) else part.to(**like)

    draw = torch.Generator().manual_seed(2)
    contexts = [(torch.randn(len(side), 2, dim, generator=draw) / dim**0.5).to(**like) for side in sides]
    return {"region_contexts": contexts[0], "word_contexts": contexts[1],
            "parameters": GatedAttention(*map(moved, parameters))}  # fmt: skip


def _loss(check: Check, features: Callable[..., Tensor], backend: str) -> tuple[list[Tensor], Callable[[], Tensor]]:
    scores = features(*check.shape[:2])
    return [scores], lambda: triplet_loss(scores, backend=backend, reduction="none", **dict(check.options))


CALLS: dict[str, Callable[..., Any]] = {
    "scan_scores": _two_sided(scan_scores),
    "scan_attend": _two_sided(scan_attend),
    "maxsim_scores": _two_sided(maxsim_scores),
    "maxsim_argmax": _two_sided(maxsim_argmax),
    "gated_attention_scores": _two_sided(gated_attention_scores),
    "heterogeneous_scores": _two_sided(heterogeneous_scores),
    "triplet_loss": _loss,
}


def errors(check: Check, device: torch.device) -> list[tuple[float, float]]:
    """(error, bound) of what the call makes, and of gradients."""
    dtype = DTYPES[check.precision]
    with precision("float32"):
        exact = made(check, torch.float64, "torch", device, dtype)
        if check.operation == "maxsim_argmax":  # nearly equal maxima may be either's
            eager = [exact[0]]
        else:
            with precision(check.precision):
                eager = made(check, dtype, "reference", device, dtype)
    with precision(check.precision):
        ours = made(check, dtype, check.backend, device, dtype)
    found = []
    for times, x, y, z in zip((2, 3), ours, eager, exact, strict=False):
        if check.operation == "maxsim_argmax":
            found.append((float((x != z).double().mean()), 0.03))
            continue
        length = max(float(z.norm()), 1e-30)
        bound = times * float((y - z).norm()) / length + (4 if times == 3 else 1) * UNITS[check.precision]
        found.append((float((x - z).norm()) / length, bound))
    return found


def told_of(check: Check, kind: str) -> tuple[str, bool]:
    """A line on a check, and whether it passed."""
    device = torch.device(kind)
    with precision(check.precision):
        reason = backends.unsupported_reason(check.backend, device, DTYPES[check.precision])
    if reason:
        return f"{check}: not run, {reason}", True
    try:
        found = errors(check, device)
    except Exception as error:
        text = " ".join(str(error).split())
        return f"{check}: FAILED {type(error).__name__}: {text[-400:]}", False
    right = all(error <= bound for error, bound in found)
    figures = ", ".join(f"{error:.1e} (≤ {bound:.1e})" for error, bound in found)
    return f"{check}: {'' if right else 'WRONG '}{figures}", right


def main() -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    todo = (
        list(checks())
        if kind == "cuda"
        else [c._replace(backend="cpu") for c in checks() if c.precision == "float32"][::7]
    )
    wrong = 0
    workers = max(1, min(16, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for future in as_completed([pool.submit(told_of, check, kind) for check in todo]):
            text, right = future.result()
            wrong += not right
            tell("checks", text, right=right)
    tell("checks", f"{len(todo)} checks, {wrong} failed")


if __name__ == "__main__":
    main()
