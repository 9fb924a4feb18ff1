"""The commands that take what other programs wrote: `import-scan`, `import-captions` and `import-features`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from crossret.cli.errors import refuse, warnings_as_lines
from crossret.cli.options import NewDirectory, option
from crossret.cli.output import say


def import_scan(
    checkpoint: Annotated[Path, typer.Argument(help="What the published code saved, .pth.tar.")],
    output: NewDirectory,
    vocabulary: Annotated[
        Path,
        option(
            "The words, as vocab.py wrote them, .json or .pkl; for MHSAN, those to take vectors of.", dir_okay=False
        ),
    ],
    word_table: Annotated[Path | None, option("Of MHSAN: skip-thoughts' vectors, utable.npy.", dir_okay=False)] = None,
    dictionary: Annotated[Path | None, option("Of MHSAN: their words, dictionary.txt.", dir_okay=False)] = None,
    bidirectional: Annotated[bool, option("Of MHSAN: its text reads both ways.", "--bidirectional")] = False,
) -> None:
    """Make a model of a checkpoint of published code.

    The model does what every model does here: evaluate, encode, search, be trained
    further. Nothing in the checkpoint is run: a file that names more than tensors,
    plain values and options is refused.

    SCAN, and VSE++, which is written alike and told apart: all of train.py's
    options. Of a VSE++ that was trained on images and not on precomputed features,
    the CNN is left out: the model takes what it makes of an image, divided by its
    L2 norm, as the image's one region. SPLIT_ims.npy may be VSE++'s own, one
    vector an image.

    MHSAN: its image side begins at the ResNet's feature map, which is left out:
    features are the map's places, (images, places, 2048). Its captions have case
    and no <start> and <end>; here they are in lower case and between the two, whose
    vectors are zero, so scores differ from the published ones.

    \b
    Examples:
      crossret import-scan model_best.pth.tar --output models/scan --vocabulary vocab/f30k_precomp_vocab.json
      crossret evaluate models/scan data/f30k_precomp --split test
      crossret import-scan coco_vse++/model_best.pth.tar --output models/vse --vocabulary vocab/coco_precomp_vocab.pkl
      crossret import-scan mhsan.pth.tar --output models/mhsan --vocabulary vocab.json \\
        --word-table utable.npy --dictionary dictionary.txt
    """
    from crossret.compat.checkpoints import Words, import_checkpoint, read_vocabulary
    from crossret.files.directories import new_directory
    from crossret.models.checkpoints import save_model

    if (word_table is None) != (dictionary is None):
        raise ValueError("--word-table and --dictionary belong together: one is missing")
    words = None if word_table is None or dictionary is None else Words(word_table, dictionary)
    with new_directory(output) as directory, warnings_as_lines():
        known = read_vocabulary(vocabulary)
        model = import_checkpoint(checkpoint, known, words, bidirectional=bidirectional)
        save_model(model, directory, known)
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    say(f"{output}: {model.kind} of {numbers:,} numbers and {len(known):,} words")


def import_captions(
    captions: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file of captions of a kind above.")],
    output: Annotated[Path, option("Data directory to write the splits into.", file_okay=False)],
    splits: Annotated[
        str | None,
        option(
            "By the file's names of splits what they become; others are left out. By default restval becomes train, "
            "val and validation become dev, and train, dev and test stay.",
            metavar="<from=to,...>",
        ),
    ] = None,
    split: Annotated[str | None, option("What all images become, whatever the file says.")] = None,
    images: Annotated[
        Path | None,
        option(
            "With --split: the images to take, in order, an id or a file a line; also _ids.txt of VSE++ and VSE∞, with "
            "id_mapping.json beside it.",
            dir_okay=False,
        ),
    ] = None,
    captions_per_picture: Annotated[
        int | None, option("Take the first so many of each; by default all.", min=1)
    ] = None,
    protocol: Annotated[
        Literal["published"] | None, option("The published tables': the first five captions of each image.")
    ] = None,
) -> None:
    """Write the captions of a file as splits.

    What the file is is told by what is in it:

    \b
      Karpathy's JSON             dataset_flickr30k.json, dataset_coco.json
      MS-COCO's annotations       captions_val2014.json
      JSON of LAVIS and BLIP      [{"image": "a.jpg", "caption": "..." or [...]}, ...]
      JSON by file                {"a.jpg": "..." or [...], ...}
      JSON lines                  {"image" or "file_name": "a.jpg", "caption" or "text": "..."}
      Flickr's tokens             results_20130124.token: a.jpg#0<TAB>...
      TSV; CSV with , ; or |      with a header that names image and caption, or without

    Writes SPLIT_caps.txt, all captions of each image; SPLIT_ids.txt, the images'
    names, by which features are found: MS-COCO's ids, of others the files without
    endings; SPLIT_caption_ids.txt, the captions' ids, where the file has some; and
    SPLIT_image_of_caption.npy where images have different numbers of captions.
    Where there is SPLIT_ids.txt, as import-features leaves it, captions are in its
    order.

    \b
    Examples:
      crossret import-captions dataset_coco.json --output data/coco --protocol published
      crossret import-features trainval_36.tsv --output data/coco --split train
      crossret import-captions dataset_coco.json --output data/coco_1k --splits train=train,val=dev
      crossret import-captions captions_val2014.json --output data/coco --split test --images test_ids.txt
    """
    from crossret.captions.importing import SPLITS
    from crossret.captions.importing import import_captions as write_splits
    from crossret.data.owners import PUBLISHED_CAPTIONS

    parts = [] if splits is None else [part.split("=") for part in splits.split(",")]
    if not all(len(part) == 2 and all(part) for part in parts):
        raise ValueError(f"--splits must be like train=train,val=dev, not {splits!r}")
    if split is None:
        refuse({"images": images}, "needs --split")
    else:
        refuse({"splits": splits}, "is for a file's own splits, and --split for none")
    if protocol is not None:
        refuse({"captions_per_picture": captions_per_picture}, "is not for --protocol")
        captions_per_picture = PUBLISHED_CAPTIONS
    becomes = {own: name for own, name in parts} or SPLITS
    counts, notes = write_splits(captions, output, becomes, split=split, listed=images, per_image=captions_per_picture)
    for name, own in counts.items():
        count = f"{min(own)}" if min(own) == max(own) else f"{min(own)} to {max(own)}"
        say(f"{output}: {name}, {len(own):,} images with {count} captions each")
    for note in notes:
        say(note)


def import_features(
    sources: Annotated[
        list[Path], typer.Argument(exists=True, help="A folder with a file an image, or one file, or several .tsv.")
    ],
    output: Annotated[Path, option("Data directory to write a split into.", file_okay=False)],
    split: Annotated[str, option("Which SPLIT_ims.npy to write.")],
    region_count: Annotated[
        int | None, option("Of each image the first regions, no more; by default all.", min=1)
    ] = None,
    ids: Annotated[
        Path | None,
        option(
            "Of a folder, .tsv, .pt and .safetensors: ids of the images to take, in order, a line each; SPLIT_ids.txt "
            "where there is one.",
            dir_okay=False,
        ),
    ] = None,
    boxes: Annotated[
        Path | None,
        option("Of .npy: the file of boxes (images, regions, 4); of a folder: that of boxes, one an image."),
    ] = None,
    dataset: Annotated[
        str | None,
        option(
            "Of a folder, .h5, .pt and .safetensors: name of the features; by default a usual one, of .h5 features."
        ),
    ] = None,
    box_dataset: Annotated[
        str | None, option("Of the same: name of the boxes; by default a usual one, of .h5 none.")
    ] = None,
) -> None:
    """Write region features of other programs as a split.

    A folder holds a file an image, .npz, .npy, .pt or .safetensors: features
    (regions, dimensions), or of a map (height, width, dimensions), and perhaps boxes
    (regions, 4), found by their names: x and bbox of bottom-up-attention.pytorch,
    feat of captioning code, whose boxes are in a folder of their own. An image is
    called as its file without the ending; --ids has that name, or the number at its
    end.

    .tsv is bottom-up attention's: image_id, image_w, image_h, num_boxes, boxes,
    features, the last two as base64 of float32; its names may go on, as in .tsv.0.
    .npy, .h5, .pt, .pth and .safetensors hold features (images, regions,
    dimensions); .pt, .pth and .safetensors may instead hold a tensor an image by its
    id. Nothing in a file is run. .h5 needs pip install 'crossret[hdf5]'.

    Writes SPLIT_ims.npy and, as far as the source has them, SPLIT_boxes.npy and
    SPLIT_ids.txt, and of images with different numbers of regions
    SPLIT_lengths.npy; SPLIT_caps.txt, the captions, is import-captions' or yours to
    add. float16 stays float16, which trains as float32 does and is half as large.
    What is malformed ends the command with file, row and reason, and nothing is
    written.

    \b
    Examples:
      crossret import-features trainval_36.tsv --output data/coco --split train --ids train_ids.txt
      crossret import-features bua_features/ --output data/coco --split train
      crossret import-features cocobu_att/ --output data/coco --split train --boxes cocobu_box/
      crossret import-features regions.npy --output data/f30k --boxes boxes.npy --split test
      crossret import-features train36.hdf5 --output data/f30k --split train --dataset features --box-dataset image_bb
    """
    from crossret.compat.features import import_features as write_split
    from crossret.compat.features import open_source, takes_ids
    from crossret.data.precomputed import ids_path
    from crossret.terminal import progress_bar

    named = ids_path(output, split)
    if ids is None and named.is_file() and takes_ids(sources[0]):
        ids = named
    with warnings_as_lines(), progress_bar("reading") as progress:
        source = open_source(sources, ids=ids, boxes=boxes, dataset=dataset, box_dataset=box_dataset)
        done = write_split(source, output, split, regions=region_count, progress=progress)
    written = "features and boxes" if done.with_boxes else "features"
    count = f"{done.regions}" if done.fewest == done.regions else f"{done.fewest} to {done.regions}"
    say(f"{output}: {written} of {done.images:,} images, {count} regions of {done.dimensions:,} each")
