"""The command that shows where a model looks: `explain`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.errors import warnings_as_lines
from crossret.cli.options import Device, Run, Split, Threads, load_trained, option, use_threads
from crossret.cli.output import say

_PICTURES = 4


def explain(
    run: Run,
    data: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="What `render-scenes` wrote, or a data directory.")
    ],
    split: Split = "test",
    photographs: Annotated[
        Path | None,
        option("Of data that are no scenes: the photographs, named as SPLIT_ids.txt.", exists=True, file_okay=False),
    ] = None,
    draw: Annotated[
        int | None,
        option(f"Draw so many captions, of evenly spaced images; by default {_PICTURES}, 0 draws none.", min=0),
    ] = None,
    number: Annotated[
        list[int] | None,
        option("Draw this caption of the split, numbered from 0; may be repeated.", metavar="<int>"),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "Directory for the pictures and figures.json; by default attention/ in that of the model.", file_okay=False
        ),
    ] = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Show where a model looks, and how often it is right.

    Plays the pointing game with all captions of a split of rendered scenes: how
    often the region that a noun looks at most, or a head or step of a model that
    attends within the image, shows what the caption names. Prints a table, and
    draws pictures of the attention of some captions.

    With --photographs it draws over your own photographs: of the regions' boxes,
    SPLIT_boxes.npy, or, without, of a square grid of regions. A file is an image's
    if its name is the id in SPLIT_ids.txt, or ends with that number.

    \b
    Examples:
      crossret explain runs/scan scenes
      crossret explain runs/mhsan scenes --draw 10 --output pictures
      crossret explain runs/oan scenes --split dev --number 7 --number 12
      crossret explain runs/coco data/coco --photographs val2014 --draw 8
    """
    import numpy as np
    from rich.console import Console

    from crossret.evaluation import encode_dataset
    from crossret.explain.grounding import GroundedSplit, draw_captions, play_pointing_game, spaced_captions
    from crossret.explain.photographs import draw_photographs
    from crossret.files.json import write_json
    from crossret.models.base import encoder_of
    from crossret.terminal import pointing_table, progress_bar

    if draw is not None and number:
        raise ValueError("of --draw and --number only one can be given")
    use_threads(threads)
    model, corpus = load_trained(run, data, split, device)
    for index in number or []:
        if not 0 <= index < corpus.n_captions:
            raise ValueError(f"--number {index}: {split} has captions 0 to {corpus.n_captions - 1}")
    directory = output if output is not None else run / "attention"
    count = _PICTURES if draw is None else draw
    if photographs is not None:
        if not count and not number:
            raise ValueError("--draw 0 draws nothing, and with --photographs nothing else is done")
        # Of evenly spaced images the first caption: not picked by success.
        spaced = np.linspace(0, corpus.n_images - 1, min(count, corpus.n_images)).astype(int)
        chosen = number or [int(np.flatnonzero(corpus.image_of_caption == image)[0]) for image in spaced]
        drawn = draw_photographs(directory, model, corpus, photographs, chosen)
        if not drawn:
            raise ValueError(f"{run}: this {model.kind} model does not attend over regions, there is nothing to show")
        say(f"{directory}: {', '.join(drawn)}")
        return
    if encoder_of(model) is not None:
        raise ValueError(f"{run}: reads pictures: --photographs draws where it looks, and there is no pointing game")
    with warnings_as_lines(), progress_bar("encoding") as progress:
        encoded = encode_dataset(model, corpus, progress=progress)
    grounded = GroundedSplit.load(data, split, corpus.data, *encoded, max_words=model.config.max_words)
    games = play_pointing_game(model, grounded)
    if not games:
        raise ValueError(f"{run}: this {model.kind} model does not attend over regions, there is nothing to show")
    drawn = draw_captions(directory, model, grounded, number or spaced_captions(grounded, count))
    figures = {"model": model.kind, "split": split, "pointing_game": [asdict(game) for game in games]}
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "figures.json", {**figures, "pictures": drawn})
    title = f"Pointing game, {split}: {corpus.n_images:,} images, {corpus.n_captions:,} captions"
    Console(emoji=False).print(pointing_table(games, title))
    if drawn:
        say(f"{directory}: {', '.join(drawn)}")
