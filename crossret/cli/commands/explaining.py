"""The command that shows where a model looks: `explain`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.errors import warnings_as_lines
from crossret.cli.options import Device, Threads, in_a_directory, load_trained, option, use_threads
from crossret.cli.output import say

_PICTURES = 4


def explain(
    run: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Output directory of `train`, or a model's own.")
    ],
    scenes: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="What `render-scenes` wrote: pictures, boxes, truth.")
    ],
    split: Annotated[str, option("Which split of the scenes.")] = "test",
    captions: Annotated[
        int | None,
        option(f"Draw so many captions, of evenly spaced images; by default {_PICTURES}, 0 draws none.", min=0),
    ] = None,
    caption: Annotated[
        list[int] | None,
        option("Draw this caption of the split, numbered from 0; may be repeated.", metavar="<int>"),
    ] = None,
    output: Annotated[
        Path | None, option("Directory for the pictures; by default attention/ in that of the model.", file_okay=False)
    ] = None,
    json: Annotated[
        Path | None, option("Also write the figures to this file.", dir_okay=False, callback=in_a_directory)
    ] = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Show where a model looks, and how often it is right.

    Plays the pointing game with all captions of a split of rendered scenes: how
    often the region that a noun looks at most, or a head or step of a model that
    attends within the image, shows what the caption names. Prints a table, and
    draws pictures of the attention of some captions.

    \b
    Examples:
      crossret explain runs/scan scenes
      crossret explain runs/mhsan scenes --captions 10 --output pictures
      crossret explain runs/oan scenes --split dev --caption 7 --caption 12 --json figures.json
    """
    from rich.console import Console

    from crossret.evaluation import encode_dataset
    from crossret.explain.grounding import GroundedSplit, draw_captions, play_pointing_game, spaced_captions
    from crossret.files.json import write_json
    from crossret.terminal import pointing_table, progress_bar

    if captions is not None and caption:
        raise ValueError("of --captions and --caption only one can be given")
    use_threads(threads)
    model, corpus = load_trained(run, scenes, split, device)
    for index in caption or []:
        if not 0 <= index < corpus.n_captions:
            raise ValueError(f"--caption {index}: {split} has captions 0 to {corpus.n_captions - 1}")
    with warnings_as_lines(), progress_bar("encoding") as progress:
        encoded = encode_dataset(model, corpus, progress=progress)
    grounded = GroundedSplit.load(scenes, split, corpus.data, *encoded, max_words=model.config.max_words)
    games = play_pointing_game(model, grounded)
    if not games:
        raise ValueError(f"{run}: this {model.kind} model does not attend over regions, there is nothing to show")
    directory = output if output is not None else run / "attention"
    chosen = caption or spaced_captions(grounded, _PICTURES if captions is None else captions)
    pictures = draw_captions(directory, model, grounded, chosen)
    if json is not None:
        figures = {"model": model.kind, "split": split, "pointing_game": [asdict(game) for game in games]}
        write_json(json, {**figures, "pictures": pictures})
    title = f"Pointing game, {split}: {corpus.n_images:,} images, {corpus.n_captions:,} captions"
    Console(emoji=False).print(pointing_table(games, title))
    if pictures:
        say(f"{directory}: {', '.join(pictures)}")
