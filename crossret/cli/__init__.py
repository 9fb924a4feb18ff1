"""The `crossret` command line: what a user types, and one line for what they typed wrong."""

from crossret.cli.commands.application import main

__all__ = ["main"]
