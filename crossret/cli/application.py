"""All commands as one program, and one line for what its user typed wrong."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from crossret.cli.clustering import cluster_regions
from crossret.cli.comparing import compare
from crossret.cli.demonstration import demo, render_scenes
from crossret.cli.errors import INTERRUPTED, Interrupted, fail
from crossret.cli.explaining import explain
from crossret.cli.options import option
from crossret.cli.perturbing import perturb
from crossret.cli.presets import presets
from crossret.cli.scoring import score
from crossret.cli.searching import search
from crossret.cli.training import evaluate, train

# Commands import what they need when they run: torch alone takes seconds, and --help needs none of it.

# Errors of writing. Whatever writes a file names it in them, so without a name they are of what is printed.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="crossret",
    epilog="Start with: crossret demo",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 the user's mistake in one line on standard error, 130 interrupted.

    The only place that words such mistakes: commands raise ValueError or OSError for what they cannot use.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no arrows still gets its figures
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="crossret", standalone_mode=False)
        if status == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            fail("interrupted", INTERRUPTED)
    except Interrupted as error:
        fail(f"interrupted; {error}", INTERRUPTED)
    except TyperException as error:
        fail(error.format_message())
    except MemoryError as error:
        fail(f"not enough memory: {error}")
    except OSError as error:
        place = error.filename or ("standard output" if error.errno in _NO_ROOM else None)
        fail(f"{place}: {error.strerror}" if place and error.strerror else str(error))
    except (ValueError, FloatingPointError) as error:
        fail(str(error))
    except RuntimeError as error:
        from crossret_kernels import UnsupportedByBackend

        if "DefaultCPUAllocator" in str(error):  # the only mark of torch's allocation errors on the CPU
            fail(f"not enough memory: {str(error).splitlines()[0]}")
        if not isinstance(error, UnsupportedByBackend):
            raise
        fail(str(error))
    sys.exit(status)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"crossret {metadata.version('crossret')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _crossret(
    context: typer.Context,
    version: Annotated[
        bool, option("Print the version and exit.", "--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Cross-attention image-text retrieval: render scenes, train, compare, evaluate, score, search."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (
    demo,
    render_scenes,
    cluster_regions,
    perturb,
    presets,
    train,
    compare,
    evaluate,
    explain,
    score,
    search,
):
    app.command()(command)
