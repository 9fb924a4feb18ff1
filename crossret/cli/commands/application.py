"""All commands as one program, and one line for what its user typed wrong."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from crossret import __version__
from crossret.cli.commands.clustering import cluster_regions
from crossret.cli.commands.comparing import compare
from crossret.cli.commands.demonstration import demo, render_scenes
from crossret.cli.commands.encoding import encode
from crossret.cli.commands.evaluating import evaluate
from crossret.cli.commands.explaining import explain
from crossret.cli.commands.extracting import extract
from crossret.cli.commands.importing import import_captions, import_features, import_scan
from crossret.cli.commands.indexing import index
from crossret.cli.commands.perturbing import perturb
from crossret.cli.commands.presets import presets
from crossret.cli.commands.scoring import score
from crossret.cli.commands.searching import search
from crossret.cli.commands.sharding import shard
from crossret.cli.commands.training import train
from crossret.cli.errors import Interrupted, fail, fail_interrupted, logged
from crossret.cli.options import option
from crossret.cli.suggestions import suggestion
from crossret.files.unicode import escaped, is_unicode
from crossret.mistakes import mistake

# Commands import what they need when they run: torch alone takes seconds, and --help needs none of it.

_ABORTED = 130  # typer's exit code for a KeyboardInterrupt

app = typer.Typer(
    name="crossret",
    epilog="Start with: crossret demo",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 the user's mistake in one line on standard error, 130 interrupted
    (143 and 129 where SIGTERM and SIGHUP did it).

    CROSSRET_TRACEBACK=1 shows where in the code a mistake was found.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no arrows still gets its figures
    for argument in sys.argv[1:] if arguments is None else arguments:
        if not is_unicode(argument):  # which a file of tensors would say after hours of training
            fail(f"argument {escaped(argument)}: not UTF-8")
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="crossret", standalone_mode=False)
        if status == _ABORTED:
            fail_interrupted()
    except Interrupted as error:
        fail_interrupted(str(error))
    except TyperException as error:
        fail(suggestion(error) or error.format_message())
    except Exception as error:
        message = mistake(error)
        if message is None:
            raise
        if os.environ.get("CROSSRET_TRACEBACK") == "1":
            traceback.print_exc()
        fail(message)
    sys.exit(status)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"crossret {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _crossret(
    context: typer.Context,
    version: Annotated[
        bool, option("Print the version and exit.", "--version", callback=_print_version, is_eager=True)
    ] = False,
    verbose: Annotated[
        int, option("Say what is chosen and found on the way; -vv says more.", "-v", "--verbose", count=True)
    ] = 0,
) -> None:
    """Cross-attention image-text retrieval: render scenes, train, compare, evaluate, encode, score, search."""
    if verbose:
        context.with_resource(logged(logging.INFO if verbose == 1 else logging.DEBUG))
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (
    demo,
    render_scenes,
    extract,
    index,
    cluster_regions,
    perturb,
    presets,
    train,
    compare,
    evaluate,
    encode,
    explain,
    score,
    search,
    shard,
    import_scan,
    import_captions,
    import_features,
):
    app.command()(command)
