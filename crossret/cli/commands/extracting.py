"""The command that makes data of photographs and captions: `extract`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.encoding_options import Amp, BatchSize, Unreadable, Workers, reading_threads
from crossret.cli.errors import Interrupted, refuse, warnings_as_lines
from crossret.cli.options import Device, Threads, option, use_device, use_threads
from crossret.cli.output import say, say_left_out


def extract(
    pictures: Annotated[
        Path,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="A folder of pictures that Pillow opens, in it or in folders inside it.",
        ),
    ],
    encoder: Annotated[
        str,
        option(
            "A vision model: its folder, or its name on the Hugging Face Hub; timm:NAME is timm's; "
            "package.module:function calls yours, which returns an encoder."
        ),
    ],
    output: Annotated[Path, option("Data directory to write a split into.", file_okay=False)],
    split: Annotated[
        str,
        option(
            "Which SPLIT_ims.npy to write; where the captions' file tells splits, the images are those of this one, "
            "val's where it is dev, restval's, too, where it is train."
        ),
    ] = "train",
    captions: Annotated[
        Path | None,
        option(
            "A file of pictures and their captions, as `import-captions` reads them; the pictures are those, in their "
            "order.",
            dir_okay=False,
        ),
    ] = None,
    captions_per_picture: Annotated[
        int | None, option("Take the first so many of each; by default all.", min=1)
    ] = None,
    text_encoder: Annotated[
        str | None, option("A text encoder, likewise: writes tokens of the captions, SPLIT_words, which `train` reads.")
    ] = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    amp: Amp = False,
    half: Annotated[bool, option("What is written; float16 is half as large.", "--float16/--float32")] = False,
    unreadable: Unreadable = "refuse",
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Make data of photographs and captions by pretrained encoders.

    Writes tokens of every picture, SPLIT_ims.npy, and the part of the picture that
    each belongs to, SPLIT_boxes.npy, so that `explain` draws on the picture; the
    pictures' names, SPLIT_ids.txt; and where pictures have different numbers of
    tokens, SPLIT_lengths.npy. With --captions SPLIT_caps.txt, which `train` needs.
    Where there are SPLIT_ids.txt and SPLIT_caps.txt, as `import-captions` leaves
    them, the pictures and captions are those.

    Encoders are CLIP, SigLIP, SigLIP 2, ViT, DINOv2, DINOv3, Swin, ResNet and
    ConvNeXt of transformers; of texts, text towers and whatever transformers loads, such as
    BERT: pip install 'crossret[encoders]'. Of timm any backbone: pip install
    'crossret[timm]'. Class and register tokens, padding and special tokens are left
    out. A folder needs no network; HF_HUB_OFFLINE=1 keeps the rest to what is in
    the cache.

    Of late interaction ColPali and ColQwen2, and of captions, which are queries,
    ColBERT and PyLate, too: pip install 'crossret[sentence-transformers]'.

    A command that was interrupted goes on where it was when it is repeated.

    \b
    Examples:
      crossret extract photographs --encoder google/siglip2-base-patch16-naflex --output data/mine \\
        --captions captions.tsv --float16
      crossret extract val2014 --encoder facebook/dinov2-base --output data/coco --split test
      crossret extract flickr30k-images --encoder models/clip --text-encoder models/clip --output data/f30k \\
        --captions results_20130124.token
    """
    from crossret.data.pictures import pictures_below
    from crossret.extraction import (
        Options,
        extract_pictures,
        load_picture_encoder,
        load_text_encoder,
        read_captions_of_pictures,
    )
    from crossret.terminal import progress_bar

    use_threads(threads)
    place = use_device(device)
    pictures_below(pictures)  # which fails without any: an encoder takes long to load
    given = None
    if captions is None:
        refuse({"captions_per_picture": captions_per_picture}, "needs --captions")
    else:
        with warnings_as_lines():
            given = read_captions_of_pictures(captions, captions_per_picture, split)
    options = Options(batch_size, workers or reading_threads(), amp, half, unreadable)
    try:
        chosen = load_picture_encoder(encoder)
        chosen.module.to(place)
        texts = None if text_encoder is None else load_text_encoder(text_encoder)
        if texts is not None:
            texts.module.to(place)
        progress = partial(progress_bar, speed=True)
        with warnings_as_lines():
            done = extract_pictures(
                pictures, chosen, output, split, captions=given, texts=texts, options=options, progress=progress
            )
    except KeyboardInterrupt:
        raise Interrupted(f"{output} keeps what was done, the same command goes on") from None
    count = f"{done.most}" if done.fewest == done.most else f"{done.fewest} to {done.most}"
    say(f"{output}: {done.pictures:,} pictures of {split}, {count} tokens of {done.dimensions:,} each")
    if done.words:
        say(f"{output}: {done.captions:,} captions, {done.words:,} tokens")
    elif done.captions:
        say(f"{output}: {done.captions:,} captions")
    say_left_out(done.left_out, "could not be read")
    say_left_out(done.others, "are no pictures")
    if done.without_captions:
        say(f"left out, as {captions} does not name them: {done.without_captions:,} pictures")
