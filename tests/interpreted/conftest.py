"""Triton kernels on the CPU: collected where TRITON_INTERPRET=1 is set before the process starts, by `make test`.

Triton asks for it when it is imported, so that no process can run kernels both ways. Its interpreter gets bfloat16
wrong: these tests are of float32 and float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from triton.runtime import interpreter

from crossret_kernels.backends import INTERPRETED
from tests.interpreted.programs import programs_run

collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Interprets in half the time.

    The interpreter puts its own functions into `triton.language` at every launch, and looks for what is left to put
    there at every call of a function too: once for a module is enough. It computes whether each sum of integers
    overflows, and drops the answer unless it debugs.
    """
    usual, looked_through = interpreter.InterpretedFunction.__call__, set[int]()
    builder = interpreter.interpreter_builder

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if id(self.fn.__globals__) in looked_through:
            return self.rewrite()(*arguments, **named)
        looked_through.add(id(self.fn.__globals__))
        return usual(self, *arguments, **named)

    with (
        patch.object(interpreter.InterpretedFunction, "__call__", call),
        patch.object(builder, "options", replace(builder.options, sanitize_overflow=False)),
    ):
        yield


@pytest.fixture(autouse=True)
def order(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs programs in the order of the fixture's parameter, else in one that is drawn for every test and grid."""
    with programs_run(getattr(request, "param", None), request.node.nodeid):
        yield
