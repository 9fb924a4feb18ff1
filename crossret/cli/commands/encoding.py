"""The command that keeps what a model makes of a split: `encode`."""

from __future__ import annotations

from crossret.cli.errors import warnings_as_lines
from crossret.cli.options import DataDirectory, Device, NewDirectory, Run, Split, Threads, load_trained, use_threads
from crossret.cli.output import say


def encode(
    run: Run,
    data: DataDirectory,
    output: NewDirectory,
    split: Split = "test",
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Write a model's embeddings of a split's images and captions.

    Makes OUTPUT/images and OUTPUT/captions, which `search` and `score` take with the
    model: text finds images among them, and either side the other, also by models
    whose scores need both. In either there is values.npy (rows, dimensions), the
    regions or words one after another, offsets.npy (items + 1), where those of each
    item begin and end, and model.json, the model's kind, hyper-parameters and a
    fingerprint of its weights, by which another model's are told from them.

    What else a model keeps of every item is in vectors_NAME.npy; of MHSAN, which
    scores by one vector an item, the rows are its heads' weights and
    vectors_embedding.npy these vectors, while of VSE++ the one row of an item is that
    vector. Without the model, `search` and `score` take the rows of scan and VSE++,
    by a score whose hyper-parameters are typed. In bounded memory; the directory is
    there when it is whole.

    \b
    Examples:
      crossret encode runs/scan data/f30k_precomp --output embeddings
      crossret search runs/scan embeddings --caption "two dogs in the snow"
      crossret search embeddings/images --words embeddings/captions --direction i2t --lambda-softmax 4
    """
    from crossret.files.directories import check_new_directory
    from crossret.search.encoding import encode_split
    from crossret.terminal import progress_bar

    use_threads(threads)
    check_new_directory(output, data)  # ahead of the model, which takes seconds
    trained, corpus = load_trained(run, data, split, device)
    with warnings_as_lines(), progress_bar("encoding") as progress:
        encode_split(trained, corpus, output, progress=progress)
    say(f"{output}: {corpus.n_images:,} images and {corpus.n_captions:,} captions of {split}")
