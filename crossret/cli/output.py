"""Lines that commands print on standard output."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from crossret.files.unicode import printable

_NAMED = 5  # items that are left out, at most


def say(text: str) -> None:
    """Print a line, whatever names are in it."""
    typer.echo(printable(text))


def say_left_out(names: Sequence[str], why: str) -> None:
    """Print how many files were left out and what the first are called; nothing where none was."""
    if names:
        more = ", ..." if len(names) > _NAMED else ""
        say(f"left out, as they {why}: {len(names):,} ({', '.join(names[:_NAMED])}{more})")
