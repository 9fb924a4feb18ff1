"""How a command that cannot go on ends: one line on standard error and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


class Interrupted(Exception):
    """Ctrl-C in a command that can say what it leaves."""


def fail(message: str, status: int = 2) -> NoReturn:
    """Say what is wrong and exit."""
    print("crossret:", " ".join(message.split()), file=sys.stderr)
    sys.exit(status)
