"""The commands that make data out of nothing: `demo` and `render-scenes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crossret import system
from crossret.cli.errors import Interrupted
from crossret.cli.options import Seed, Threads, option, use_threads
from crossret.hyperparameters import MODEL_CONFIGS


def demo(
    output: Annotated[Path, option("Directory for everything that the demo makes.", file_okay=False)] = Path(
        "demo-output"
    ),
    model: Annotated[str, option("Which model.", metavar=f"[{'|'.join(MODEL_CONFIGS)}]")] = "scan",
    images: Annotated[int, option("Training images; an eighth as many to develop, a quarter to test.", min=16)] = 4000,
    epochs: Annotated[int | None, option("Passes over the training captions; by default the preset's.", min=1)] = None,
    from_pictures: Annotated[
        bool,
        option(
            "Give the model the pictures, not features of regions: it learns to see, too, by a small encoder that "
            "starts with random weights (extra encoders).",
            "--from-pictures",
        ),
    ] = False,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Do everything once, on rendered scenes.

    Renders scenes, trains a model on them with its preset "scenes", evaluates
    retrieval, shows where it looks: with scan at most four minutes on two cores.
    Prints tables; leaves the scenes, the trained model and its curves, report.json,
    attention/*.png and report.html, a page to explore, in the output directory.

    \b
    Examples:
      crossret demo
      crossret demo --output /tmp/demo --images 400 --epochs 2
      crossret demo --model mhsan --output demo-mhsan
      crossret demo --from-pictures --output demo-pictures
    """
    from rich.console import Console

    from crossret.demo import run_demo

    use_threads(threads)
    system.return_large_blocks()
    try:
        run_demo(
            output,
            model=model,
            images=images,
            epochs=epochs,
            seed=seed,
            console=Console(emoji=False),
            from_pictures=from_pictures,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"{output} holds what was done, the same command starts anew") from None


def render_scenes(
    output: Annotated[Path, option("Directory to write, made if absent.", file_okay=False)],
    train: Annotated[int, option("Training images.", min=1)] = 4000,
    dev: Annotated[int, option("Development images.", min=1)] = 500,
    test: Annotated[int, option("Test images.", min=1)] = 1000,
    seed: Seed = 0,
    grid: Annotated[
        bool, option("Regions are the 7 x 7 cells of each picture, not proposals of a detector.", "--grid")
    ] = False,
    workers: Annotated[int | None, option("Processes; by default one a core.", min=1, max=1024)] = None,
) -> None:
    """Render a data set of scenes.

    Writes pictures, captions, region boxes and features, and of the captions'
    words their parts of speech and which object every noun names.

    \b
    Examples:
      crossret render-scenes --output scenes
      crossret render-scenes --output small --train 200 --dev 50 --test 50 --seed 1
      crossret render-scenes --output cells --grid
    """
    from crossret.data.scenes.render import render_scenes as render
    from crossret.terminal import progress_bar

    with progress_bar("rendering") as progress:
        render(output, train=train, dev=dev, test=test, seed=seed, grid=grid, workers=workers, progress=progress)
