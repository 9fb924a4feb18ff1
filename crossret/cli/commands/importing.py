"""The commands that take what other programs wrote: `import-scan` and `import-features`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossret.cli.options import option


def import_scan(
    checkpoint: Annotated[Path, typer.Argument(help="What SCAN's or MHSAN's published code saved, .pth.tar.")],
    output: Annotated[Path, typer.Argument(file_okay=False, help="Directory of the model to write.")],
    vocabulary: Annotated[
        Path, option("The words, as SCAN's vocab.py wrote them; for MHSAN, those to take vectors of.", dir_okay=False)
    ],
    word_table: Annotated[Path | None, option("Of MHSAN: skip-thoughts' vectors, utable.npy.", dir_okay=False)] = None,
    dictionary: Annotated[Path | None, option("Of MHSAN: their words, dictionary.txt.", dir_okay=False)] = None,
    bidirectional: Annotated[bool, option("Of MHSAN: its text reads both ways.", "--bidirectional")] = False,
) -> None:
    """Make a model of a checkpoint of published code.

    The model does what every model does here: evaluate, encode, search, be trained
    further. Nothing in the checkpoint is run: a file that names more than tensors,
    plain values and options is refused.

    SCAN: all of train.py's options. Checkpoints of VSE++, which are written alike,
    are told apart and refused: no model here compares one vector an image with one
    a caption.

    MHSAN: its image side begins at the ResNet's feature map, which is left out:
    features are the map's places, (images, places, 2048). Its captions have case
    and no <start> and <end>; here they are in lower case and between the two, whose
    vectors are zero, so scores differ from the published ones.

    \b
    Examples:
      crossret import-scan model_best.pth.tar models/scan --vocabulary vocab/f30k_precomp_vocab.json
      crossret evaluate models/scan data/f30k_precomp --split test
      crossret import-scan mhsan.pth.tar models/mhsan --vocabulary vocab.json \\
        --word-table utable.npy --dictionary dictionary.txt
    """
    from crossret.compat.checkpoints import Words, import_checkpoint
    from crossret.data.vocabulary import Vocabulary
    from crossret.models.checkpoints import save_model

    if (word_table is None) != (dictionary is None):
        raise ValueError("--word-table and --dictionary belong together: one is missing")
    words = None if word_table is None or dictionary is None else Words(word_table, dictionary)
    known = Vocabulary.load(vocabulary)
    model = import_checkpoint(checkpoint, known, words, bidirectional=bidirectional)
    save_model(model, output, known)
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    typer.echo(f"{output}: {model.kind} of {numbers:,} numbers and {len(known):,} words")
