"""Which products of a Triton kernel may not fit 32 bits, by what Triton makes of its source: ranges of all numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend

from tests.kernels.gpu.offline import WARP, Launch

LEAST, MOST = -(2**31), 2**31 - 1
AS_THEY_ARE = {"tt.splat", "tt.expand_dims", "tt.broadcast", "tt.reshape", "tt.trans", "arith.extsi"}


class Number(NamedTuple):
    """The range of a number, or of each of a tile's."""

    low: int = LEAST
    high: int = MOST


class _Made(Exception):
    """Triton's code, ahead of its layouts."""


def first_code_of(launch: Launch, directory: Path) -> str:
    """The launch's kernel in Triton's code, with locations, of any architecture; `directory` is Triton's cache."""

    def made(module: Any, *_others: Any) -> None:
        raise _Made(str(module))

    source, options, _ = launch.specialised(90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(directory))
        patch.setenv("TRITON_ALWAYS_COMPILE", "1")
        patch.setattr(CUDABackend, "make_ttgir", staticmethod(made))
        with pytest.raises(_Made) as found:
            triton.compile(source, target=GPUTarget("cuda", 90, WARP), options=options)
    return str(found.value)


def _result(operation: str, a: Number, b: Number) -> tuple[int, int] | None:
    """The range of what an operation makes of two numbers; None where nothing is known."""
    if operation == "arith.addi":
        return a.low + b.low, a.high + b.high
    if operation == "arith.subi":
        return a.low - b.high, a.high - b.low
    if operation == "arith.muli":
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return min(corners), max(corners)
    if operation == "arith.shli":
        return _result("arith.muli", a, Number(1 << max(b.low, 0), 1 << min(max(b.high, 0), 31)))
    if operation == "arith.minsi":
        return min(a.low, b.low), min(a.high, b.high)
    if operation == "arith.maxsi":
        return max(a.low, b.low), max(a.high, b.high)
    if operation == "arith.remsi" and a.low >= 0 and b.low > 0:
        return 0, min(a.high, b.high - 1)
    if operation == "arith.divsi" and a.low >= 0 and b.low > 0:
        return 0, a.high
    return None


def products_beyond_32_bits(code: str) -> set[str]:
    """The lines of source whose products, or shifts to the left, may not fit."""
    locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", code, re.MULTILINE))
    numbers: dict[str, Number] = {}
    found = set()
    for line in code.splitlines():
        parsed = re.match(r"\s*(%\w+) = \"?([\w.]+)\"? ?(.*?)(?: loc\((#loc\d*)\))?$", line)
        if parsed is None:
            continue
        name, operation, rest, location = parsed.groups()
        a, b, *_ = *(numbers.get(own, Number()) for own in re.findall(r"%[\w.]+(?:#\d+)?", rest)), Number(), Number()
        if operation == "arith.constant":
            value = re.match(r"(?:dense<)?(-?\d+)>? :", rest)
            numbers[name] = Number(int(value[1]), int(value[1])) if value else Number()
        elif operation == "tt.make_range":
            ends = {key: int(value) for key, value in re.findall(r"(start|end) = (\d+)", rest)}
            numbers[name] = Number(ends["start"], ends["end"] - 1)
        elif operation in ("tt.get_program_id", "tt.get_num_programs"):
            numbers[name] = Number(0, MOST)
        elif operation in AS_THEY_ARE:
            numbers[name] = a
        else:
            made = _result(operation, a, b)
            low, high = made or (LEAST, MOST)
            if operation in ("arith.muli", "arith.shli") and "i64" not in rest and (low < LEAST or high > MOST):
                found.add(_source(location, locations))
            numbers[name] = Number(max(low, LEAST), min(high, MOST))
    return found


def _source(location: str | None, locations: dict[str, str]) -> str:
    """The line of source that an operation stands in: of the innermost function."""
    body = locations.get(location or "", "")
    place = re.search(r'"([^"]+\.py)":(\d+)', body)
    if place is None:
        return next((_source(own, locations) for own in re.findall(r"#loc\d*", body) if own in locations), "?")
    return Path(place[1]).read_text().splitlines()[int(place[2]) - 1].strip()
