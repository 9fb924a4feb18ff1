"""Machine code of kernels, as cuobjdump prints it, and its loops."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

FUNCTION = re.compile(r"\s+Function : (\S+)")
INSTRUCTION = re.compile(r"\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<predicate>@!?U?P\w+ )?\s*(?P<text>[^;]+);")


class Instruction(NamedTuple):
    address: int
    name: str  # without its modifiers
    target: int | None  # of a branch


class Loop(NamedTuple):
    size: int  # instructions, those of loops inside among them
    counts: Counter[str]  # of each name


def disassembler() -> Path | None:
    """That of Triton's wheel."""
    triton = find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    found = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return found if found.exists() else None


def machine_code(tool: Path, library: Path, architecture: str) -> dict[str, list[Instruction]]:
    """Instructions of every kernel, by its mangled name; those that are never executed are left out."""
    command = [tool, "-sass", "-arch", architecture, library]
    code: dict[str, list[Instruction]] = {}
    own: list[Instruction] = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if named := FUNCTION.match(line):
            own = code.setdefault(named[1], [])
        elif (found := INSTRUCTION.match(line)) and (found["predicate"] or "").strip() != "@!PT":
            name = re.split(r"[.\s]", found["text"], maxsplit=1)[0]
            target = re.search(r"0x[0-9a-f]+", found["text"]) if name == "BRA" else None
            own.append(Instruction(int(found["address"], 16), name, int(target[0], 16) if target else None))
    return code


def loops(code: list[Instruction]) -> list[Loop]:
    """From where a branch back leads to that branch, the smallest first."""
    found = []
    for last, branch in enumerate(code):
        if branch.target is not None and branch.target < branch.address:
            body = [one for one in code[: last + 1] if one.address >= branch.target]
            found.append(Loop(len(body), Counter(one.name for one in body)))
    return sorted(found, key=lambda loop: loop.size)
