"""The native library's instructions: what sums up in an innermost loop stays in registers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import crossret_kernels

LIBRARY = Path(crossret_kernels.__file__).with_name("_native.abi3.so")
FEW = 4  # multiply-adds: a loop of fewer has registers to spare, and its compiler reasons of its own
MULTIPLY_ADD = re.compile(r"vfn?madd|vdpbf16ps|fmla|bfdot")
# A whole vector onto the stack: of x86 and of aarch64.
STACK_STORE = re.compile(r"vmov\w+\s+%[xyz]mm\d+,[^,]*\(%r[sb]p\b|st[rp]\s+q\d+,.*\[sp")
JUMP = re.compile(r"(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:[^<]*,\s*)?([0-9a-f]+)\b")

LEAVES = re.compile(r"ret|jmp|b\s|br\s|ud2")  # what never goes on with the next instruction

Instructions = list[tuple[int, str]]


def functions(listing: str) -> Iterator[tuple[str, Instructions]]:
    """Every function of a disassembly, its instructions by address."""
    for block in re.split(r"\n\n", listing):
        head = re.search(r"^[0-9a-f]+ <(.*)>:$", block, re.MULTILINE)
        if head is not None:
            lines = re.findall(r"^\s*([0-9a-f]+):\s+(.*)$", block, re.MULTILINE)
            yield head[1], [(int(address, 16), text) for address, text in lines]


def blocks_of(instructions: Instructions) -> tuple[list[list[str]], list[list[int]]]:
    """Instructions from one jump or jump's target to the next, and the blocks that each may go on to."""
    places = {address: place for place, (address, _) in enumerate(instructions)}
    jumps = [JUMP.match(text) for _, text in instructions]
    targets = [None if jump is None else places.get(int(jump[1], 16)) for jump in jumps]
    ends = [
        jump is not None or LEAVES.match(text) is not None for jump, (_, text) in zip(jumps, instructions, strict=True)
    ]
    firsts = sorted({0, *(at for at in targets if at is not None), *(at + 1 for at, end in enumerate(ends) if end)})
    firsts = [first for first in firsts if first < len(instructions)]
    number = {first: block for block, first in enumerate(firsts)}
    bodies, onward = [], []
    for first, after in zip(firsts, [*firsts[1:], len(instructions)], strict=True):
        text, target = instructions[after - 1][1], targets[after - 1]
        bodies.append([text for _, text in instructions[first:after]])
        goes_on = LEAVES.match(text) is None and after < len(instructions)
        onward.append([number[at] for at in (after if goes_on else None, target) if at is not None])
    return bodies, onward


def reachable(edges: list[list[int]], start: int, within: range) -> set[int]:
    found, waiting = set(), [start]
    while waiting:
        block = waiting.pop()
        if block in within and block not in found:
            found.add(block)
            waiting += edges[block]
    return found


def innermost_loops(instructions: Instructions) -> Iterator[list[str]]:
    """From the target of every jump back to the jump what leads from one to the other, if no such loop lies between.

    Where nothing leads back to the jump it is no loop: a rare case behind the function's end, as that of a row's last
    columns, goes on in its middle.
    """
    bodies, onward = blocks_of(instructions)
    before: list[list[int]] = [[] for _ in bodies]
    for block, following in enumerate(onward):
        for after in following:
            before[after].append(block)
    loops = {}
    for last, following in enumerate(onward):
        for first in following:
            within = range(first, last + 1)
            blocks = reachable(onward, first, within) & reachable(before, last, within)
            if blocks:
                loops[first, last] = blocks
    for (first, last), blocks in loops.items():
        if not any((first, last) != (a, b) and first <= a and b <= last for a, b in loops):
            yield [text for block in sorted(blocks) for text in bodies[block]]


def spilling(listing: str) -> list[str]:
    """Functions with a loop of `FEW` multiply-adds or more that stores as many vectors to the stack as a half of them.

    A vector or two that are kept aside are no sums: of these a loop stores one for every multiply-add.
    """
    found = []
    for name, instructions in functions(listing):
        for loop in innermost_loops(instructions):
            sums = sum(MULTIPLY_ADD.match(text) is not None for text in loop)
            stores = sum(STACK_STORE.match(text) is not None for text in loop)
            if sums >= FEW and 2 * stores >= sums:
                found.append(f"{name}: {stores} stores beside {sums} multiply-adds")
    return found


def test_no_loop_keeps_its_sums_on_the_stack() -> None:
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(LIBRARY)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fused = [isa for isa in torch.ops.crossret.cpu_isas().split() if not isa.endswith(("base", "emulated"))]
    for isa in fused:  # else it would have looked at nothing
        assert f"<crossret::{isa}::" in listing
    assert MULTIPLY_ADD.search(listing)
    assert spilling(listing) == []
