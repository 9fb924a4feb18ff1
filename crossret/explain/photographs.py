"""Attention over a user's own pictures: what a model looks at beside a caption, and the sheet that shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossret.data.boxes import grid_boxes
from crossret.data.corpus import PrecomputedCorpus
from crossret.data.pictures import find_pictures, read_picture
from crossret.explain.pictures import Panel, attention_sheet, write_sheet
from crossret.explain.pointing import pointing_answers
from crossret.explain.rows import Rows
from crossret.files.directories import occupied
from crossret.models.attention import AttentionMap
from crossret.models.base import tokens_of
from crossret.models.protocol import Matcher, evaluating


def draw_maps(
    maps: Sequence[AttentionMap],
    rows: Rows,
    objects: Mapping[int, NDArray[np.float32]],
    boxes: NDArray[np.float32] | None,
    picture: Path,
    output: Path,
) -> list[Path]:
    """Draw what a model looks at in one picture, as ``Explanation.draw``, with the boxes of what the rows name."""
    pixels, written = np.asarray(read_picture(picture)), []
    if boxes is None:
        count = max((attention.weights.shape[2] for attention in maps), default=0)
        boxes = grid_boxes(count, pixels.shape[1], pixels.shape[0])
    for attention in maps:
        own = boxes[: attention.weights.shape[2]]
        name = f"{output.stem}-{attention.name}{output.suffix}" if len(maps) > 1 else output.name
        written.append(output.with_name(name))
        write_sheet(written[-1], attention_sheet(pixels, own, *panels_of(attention, rows, objects, own)))
    return written


def draw_photographs(
    directory: str | os.PathLike[str],
    model: Matcher,
    corpus: PrecomputedCorpus,
    pictures: str | os.PathLike[str],
    captions: Sequence[int],
) -> list[str]:
    """Write the pictures of some captions' attention over their images' photographs; see ``Explanation.draw``.

    Args:
        directory: made if absent.
        model: any that attends over regions.
        corpus: the images, with names, and the captions.
        pictures: the directory of the photographs.
        captions: their indices.

    Returns:
        The names of the files in the directory, ``{caption:05d}.png``; none of a model that does not attend.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the images have no names, or as ``find_pictures`` and ``Explanation.draw``.
    """
    data, chosen = corpus.data, np.asarray(captions, np.int64)
    if data.ids is None:
        raise ValueError(f"{data.name}: its images have no names, SPLIT_ids.txt, by which their pictures are found")
    owners = data.image_of_caption[chosen]
    photographs = find_pictures(pictures, [data.ids[image] for image in owners])
    device = next(model.parameters()).device
    names: list[str] = []
    with occupied(directory), evaluating(model):
        batch = corpus.batch(captions)
        regions = tokens_of(model, corpus.regions(owners))
        counts = [data.n_regions] * len(owners) if regions.lengths is None else regions.lengths.tolist()
        images = model.encode_images(**regions.on(device))
        encoded = model.encode_captions(batch.tokens.to(device), batch.lengths.to(device))
        for row, (caption, photograph) in enumerate(zip(captions, photographs, strict=True)):
            found = model.attention(images[row : row + 1], encoded[row : row + 1])
            read = Rows.of(model.config, data.captions[caption], int(encoded.lengths[row]), corpus.spans(caption))
            maps = tuple(attention.over_first(counts[row]) for attention in read.merged(found))
            boxes = None if regions.boxes is None else regions.boxes[row, : counts[row]].cpu().numpy()
            written = draw_maps(maps, read, {}, boxes, photograph, Path(directory) / f"{caption:05d}.png")
            names += [path.name for path in written]
    return names


def panels_of(
    attention: AttentionMap, rows: Rows, named: Mapping[int, NDArray[np.float32]], boxes: NDArray[np.float32]
) -> tuple[str, list[Panel], list[NDArray[np.float32]], str | None]:
    """Contents of the panel sheet of one caption's map: title, panels, objects of the image, relevance."""
    weights, strongest = attention.weights[0].cpu().numpy(), attention.strongest()[0].cpu().numpy()
    title = " ".join(rows.words)
    if attention.queries is None:
        begin = rows.begin
        of_words = [[named[row]] if row in named else [] for row in range(begin, rows.end)]
        assert attention.relevances is not None
        each = zip(
            rows.words,
            weights[begin:],
            strongest[begin:],
            of_words,
            attention.relevances[0, begin:].tolist(),
            strict=False,
        )
        way = "of the region in red with its words" if attention.name == "i2t" else "of the word with what it looks at"
        return title, [Panel(*contents) for contents in each], [], f"cosine {way}"
    objects = list(named.values())
    centred = [pointing_answers(strongest[None], boxes[None], box[None, None])[0, :, 2] for box in objects]
    panels = []
    for number, query in enumerate(attention.queries):
        looked_at = [box for box, answers in zip(objects, centred, strict=True) if answers[number]]
        words = None
        if attention.word_weights is not None:
            shades = attention.word_weights[0, number].tolist()
            words = list(zip(rows.labels, shades, strict=False))
        panels.append(Panel(query, weights[number], strongest[number], looked_at, words=words))
    return title, panels, objects, None
