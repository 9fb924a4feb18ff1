"""The command that shows where a model looks: `explain`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import Device, Run, Split, Threads, file_to_write, load_trained, option, use_threads
from crossret.cli.output import say

if TYPE_CHECKING:
    from crossret.data.corpus import PrecomputedCorpus
    from crossret.models.protocol import Matcher

_PICTURES, _ON_PAGE = 4, 100


def explain(
    run: Run,
    data: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="What `render-scenes` wrote, or a data directory.")
    ],
    split: Split = "test",
    html: Annotated[
        Path | None,
        file_to_write("Write one page that shows captions, images, scores and recall, instead of pictures."),
    ] = None,
    photographs: Annotated[
        Path | None,
        option("Of data that are no scenes: the photographs, named as SPLIT_ids.txt.", exists=True, file_okay=False),
    ] = None,
    draw: Annotated[
        int | None,
        option(
            f"Draw so many captions, of evenly spaced images; by default {_PICTURES}, on a page {_ON_PAGE}, 0 draws "
            "none.",
            min=0,
        ),
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
    """Show where a model looks, what its scores are made of, and how often it is right.

    With --html it writes one page that loads nothing else: a word that is hovered
    lights up its regions, a region its words; beside them what the score is the sum
    of, what was found, and recall. It shows regions by their boxes, SPLIT_boxes.npy,
    over the scenes, over --photographs, or over nothing.

    Without, it plays the pointing game with all captions of a split of rendered
    scenes: how often does the region that a noun looks at most, or a head or step
    of a model that attends within the image, show what the caption names? Prints a
    table, and draws pictures of the attention of some captions.

    With --photographs it draws over your own photographs: of the regions' boxes,
    or, without, of a square grid of regions. A file is an image's if its name is
    the id in SPLIT_ids.txt, or ends with that number.

    \b
    Examples:
      crossret explain runs/scan scenes --html report.html
      crossret explain runs/scan scenes
      crossret explain runs/mhsan scenes --draw 10 --output pictures
      crossret explain runs/oan scenes --split dev --number 7 --number 12
      crossret explain runs/coco data/coco --photographs val2014 --draw 8
      crossret explain runs/coco data/coco --photographs val2014 --html report.html
    """
    from rich.console import Console

    from crossret.evaluation import encode_dataset
    from crossret.explain.grounding import GroundedSplit, draw_captions, play_pointing_game, spaced_captions
    from crossret.explain.photographs import draw_photographs
    from crossret.files.features import check_output
    from crossret.files.json import write_json
    from crossret.models.base import encoder_of
    from crossret.terminal import pointing_table, progress_bar

    if draw is not None and number:
        raise ValueError("of --draw and --number only one can be given")
    if html is not None:
        refuse({"output": output}, "is for pictures, without --html")
        check_output(html, run, data, photographs)
    if draw == 0 and (html is not None or photographs is not None):
        raise ValueError(
            f"--draw 0 draws nothing, and with --{'photographs' if html is None else 'html'} nothing else is done"
        )
    use_threads(threads)
    model, corpus = load_trained(run, data, split, device)
    for index in number or []:
        if not 0 <= index < corpus.n_captions:
            raise ValueError(f"--number {index}: {split} has captions 0 to {corpus.n_captions - 1}")
    if html is not None:
        chosen = number or _spaced(corpus, _ON_PAGE if draw is None else draw)
        _write_page(html, model, corpus, chosen, data, split, photographs)
        return
    directory = output if output is not None else run / "attention"
    count = _PICTURES if draw is None else draw
    if photographs is not None:
        drawn = draw_photographs(directory, model, corpus, photographs, number or _spaced(corpus, count))
        if not drawn:
            raise ValueError(f"{run}: this {model.kind} model does not attend over regions, there is nothing to show")
        say(f"{directory}: {', '.join(drawn)}")
        return
    if encoder_of(model) is not None:
        raise ValueError(f"{run}: reads pictures: --photographs draws where it looks, and there is no pointing game")
    with warnings_as_lines(), progress_bar("encoding") as progress:
        encoded = encode_dataset(model, corpus, progress=progress)
    grounded = GroundedSplit.load(data, split, corpus, *encoded, model.config)
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


def _spaced(corpus: PrecomputedCorpus, count: int) -> list[int]:
    """First captions of evenly spaced images: not picked by success."""
    import numpy as np

    spaced = np.linspace(0, corpus.n_images - 1, min(count, corpus.n_images)).astype(int)
    return [int(np.flatnonzero(corpus.image_of_caption == image)[0]) for image in spaced]


def _write_page(
    path: Path,
    model: Matcher,
    corpus: PrecomputedCorpus,
    captions: list[int],
    data: Path,
    split: str,
    photographs: Path | None,
) -> None:
    from crossret.data.scenes.grounding import read_grounding
    from crossret.data.scenes.layout import grounding_path
    from crossret.explain.page.writing import write_page
    from crossret.explain.split import split_page
    from crossret.terminal import progress_bar

    truth = grounding_path(data, split)
    with warnings_as_lines(), progress_bar("explaining") as progress:
        page = split_page(
            model,
            corpus,
            captions,
            name=split,
            photographs=photographs,
            scenes=data,
            grounding=read_grounding(truth) if truth.exists() else None,
            progress=progress,
        )
    with progress_bar("reading pictures") as progress:
        write_page(page, path, progress=progress)
    say(f"{path}: {len(page.pairs):,} pairs, {path.stat().st_size / 1e6:.1f} MB")
