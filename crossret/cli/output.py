"""What commands say on standard output."""

from __future__ import annotations

import typer

from crossret.files.unicode import printable


def say(text: str) -> None:
    """Print a line, whatever names are in it."""
    typer.echo(printable(text))
