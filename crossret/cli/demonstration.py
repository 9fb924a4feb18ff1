"""The commands that make data out of nothing: `demo` and `render-scenes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.errors import Interrupted
from crossret.cli.options import Seed, Threads, option, use_threads


def demo(
    output: Annotated[Path, option("Directory for everything that the demo makes.", file_okay=False)] = Path(
        "demo-output"
    ),
    images: Annotated[int, option("Training images; an eighth as many to develop, a quarter to test.", min=16)] = 4000,
    epochs: Annotated[int, option("Passes over the training captions.", min=1)] = 4,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Do everything once, on rendered scenes.

    Renders scenes, trains SCAN on them, evaluates retrieval, draws where the words
    look: at most four minutes on two cores. Prints tables; leaves the scenes, the
    trained model, report.json, training.png and attention/*.png in the output
    directory.

    \b
    Examples:
      crossret demo
      crossret demo --output /tmp/demo --images 400 --epochs 2
    """
    from rich.console import Console

    from crossret.demo import run_demo

    use_threads(threads)
    try:
        run_demo(output, images=images, epochs=epochs, seed=seed, console=Console(emoji=False))
    except KeyboardInterrupt:
        raise Interrupted(f"{output} holds what was done, the same command starts anew") from None


def render_scenes(
    directory: Annotated[Path, typer.Argument(file_okay=False, help="Directory to write, made if absent.")],
    train: Annotated[int, option("Training images.", min=1)] = 4000,
    dev: Annotated[int, option("Development images.", min=1)] = 500,
    test: Annotated[int, option("Test images.", min=1)] = 1000,
    seed: Seed = 0,
    workers: Annotated[int | None, option("Processes; by default one a core.", min=1, max=1024)] = None,
) -> None:
    """Render a data set of scenes.

    Writes pictures, captions, region boxes and features, and which object every
    noun names.

    \b
    Examples:
      crossret render-scenes scenes
      crossret render-scenes small --train 200 --dev 50 --test 50 --seed 1
    """
    from crossret.data.scenes.render import render_scenes as render
    from crossret.report import progress_bar

    with progress_bar("rendering") as progress:
        render(directory, train=train, dev=dev, test=test, seed=seed, workers=workers, progress=progress)
