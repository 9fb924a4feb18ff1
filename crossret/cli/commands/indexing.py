"""The command that makes pictures searchable by text: `index`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.encoding_options import Amp, BatchSize, Unreadable, Workers, reading_threads
from crossret.cli.errors import Interrupted, refuse, warnings_as_lines
from crossret.cli.options import RUN, Device, Threads, load_model_of, option, use_device, use_threads
from crossret.cli.output import say, say_left_out


def index(
    pictures: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="A folder of pictures that Pillow opens, also in folders."),
    ],
    output: Annotated[
        Path, option("The index: a directory that is made, or that a command before made.", file_okay=False)
    ],
    encoder: Annotated[
        str | None, option("The vision model that the model's data were extracted with; by default the index's.")
    ] = None,
    model: Annotated[
        Path | None, option(f"{RUN} By default the index's, which keeps a copy.", exists=True, file_okay=False)
    ] = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    amp: Amp = False,
    unreadable: Unreadable = "refuse",
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Make an index of photographs that text searches.

    --model is a model that was trained on what `extract` made by the same --encoder,
    or one that was trained with --encoder and has its own. An encoder of late
    interaction, such as ColPali, needs no model: texts are searched by MaxSim.
    The index keeps a copy of it; neither is named again when pictures are added:
    those that are in the index as they are, by size and time of change, are not
    encoded again, changed ones are, and those that are gone from the folder leave it.
    Several folders can be in one index.

    A command that was interrupted goes on where it was when it is repeated.

    \b
    Examples:
      crossret index photographs --encoder google/siglip2-base-patch16-naflex --model runs/mine --output album
      crossret index photographs --output album
      crossret index pages --encoder vidore/colqwen2-v1.0-hf --output documents
      crossret search album "a red kite above the beach"
    """
    from crossret.extraction import Options, load_picture_encoder
    from crossret.extraction.late_interaction import is_late_interaction
    from crossret.models.base import encoder_of
    from crossret.models.checkpoints import model_directory, reads_pictures
    from crossret.picture_index.files import MODEL_DIRECTORY, encoder_of_index, has_model, is_index
    from crossret.picture_index.updating import check_index, update_index
    from crossret.terminal import progress_bar

    use_threads(threads)
    place = use_device(device)
    check_index(output)
    known = is_index(output)
    if known and has_model(output):
        model = model or output / MODEL_DIRECTORY
    if model is not None and reads_pictures(model_directory(model)):
        refuse({"encoder": encoder}, f"makes no difference: {model} has an encoder")
    elif encoder is None:
        if not known:
            raise ValueError(f"--encoder is needed: there is no index at {output} yet")
        encoder = encoder_of_index(output).name
    if model is None and not is_late_interaction(str(encoder)):
        raise ValueError(f"--model is needed: {encoder} is no encoder of late interaction, which does without")
    options = Options(batch_size, workers or reading_threads(), amp, False, unreadable)
    try:
        trained, vocabulary = (None, None) if model is None else load_model_of(model, device)
        own = None if trained is None else encoder_of(trained)
        if own is None:
            assert encoder is not None
            chosen = load_picture_encoder(os.path.abspath(encoder) if os.path.isdir(encoder) else encoder)
            chosen.module.to(place)
        else:
            chosen = own.reader
        with warnings_as_lines(), partial(progress_bar, speed=True)("indexing") as progress:
            done = update_index(output, pictures, chosen, trained, vocabulary, options=options, progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(f"{output} keeps what was done, the same command goes on") from None
    counts = {"added": done.added, "changed": done.changed, "unchanged": done.unchanged, "gone": done.gone}
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    say(f"{output}: {done.pictures:,} pictures{f': {told}' if told else ''}")
    say_left_out(done.left_out, "could not be read")
    say_left_out(done.others, "are no pictures")
