"""Arguments and options that several commands have, and what is done with them."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossret.cli.errors import warnings_as_lines
from crossret.hyperparameters import MODEL_CONFIGS

if TYPE_CHECKING:
    import torch

    from crossret.data import PrecomputedDataset, Vocabulary
    from crossret.data.corpus import PrecomputedCorpus
    from crossret.models import Matcher


_logger = logging.getLogger(__name__)


def option(text: str, *names: str, **settings: Any) -> Any:
    """An option of a command with its help text."""
    return typer.Option(*names, help=text, **settings)


def in_a_directory(path: Path | None) -> Path | None:
    """A file to write is checked when the command starts, not after minutes of work."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}")
    return path


def file_to_write(text: str, *names: str) -> Any:
    """An option that names a file to write, in a directory that is there."""
    return option(text, *names, dir_okay=False, callback=in_a_directory)


def file_to_read(text: str) -> Any:
    """An option that names a file that is there."""
    return option(text, exists=True, dir_okay=False)


RUN = "Output directory of `train`, or a model's own."
Run = Annotated[Path, typer.Argument(exists=True, file_okay=False, help=RUN)]
DataDirectory = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, help="Data in the precomputed-feature format: SPLIT_ims.npy, SPLIT_caps.txt."
    ),
]
NewDirectory = Annotated[Path, option("Directory to write, absent or empty.", file_okay=False)]
Split = Annotated[str, option("Which SPLIT_ims.npy and SPLIT_caps.txt.")]
Threads = Annotated[int | None, option("CPU threads; by default one a core.", min=1, max=1024)]
Device = Annotated[
    str | None, option("Where to compute: cpu, cuda or cuda:1; by default a CUDA device where there is one.")
]
Seed = Annotated[int, option("Decides everything that is random.", min=0, max=2**63 - 1)]
RegionLengths = Annotated[Path | None, file_to_read("Regions of each image, .npy of integers; by default all.")]
QueryLengths = Annotated[Path | None, file_to_read("Rows of each query, .npy of integers; by default all.")]
WordLengths = Annotated[Path | None, file_to_read("Words of each caption, .npy of integers; by default all.")]


def kind_of(model: str, name: str = "--model") -> str:
    """The model's name; a ValueError that begins with ``name``, of the option or argument, where there is none such."""
    if model not in MODEL_CONFIGS:
        raise ValueError(f"{name} must be one of {', '.join(MODEL_CONFIGS)}, not {model!r}")
    return model


def spelling(name: str, value: object = None) -> str:
    """The option of this name as it is typed; of a flag that which sets ``value``."""
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


def use_threads(threads: int | None) -> None:
    """Give torch the threads of --threads, where it was typed."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def use_device(name: str | None) -> torch.device:
    """Where --device says to compute; without a name a CUDA device where there is one, else the CPU.

    Raises a ValueError where the name is of no such device, or of one that is not there.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch("cpu|cuda(:[0-9]{1,4})?", name):
        raise ValueError(f"--device must be cpu, cuda or cuda:1, the number of a CUDA device, not {name!r}")
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ValueError(f"--device {name}: there is no CUDA device that torch can use")
    index, count = name.removeprefix("cuda").removeprefix(":"), torch.cuda.device_count()
    if not index:
        return torch.device("cuda")
    if int(index) >= count:
        raise ValueError(f"--device {name}: of CUDA devices there are {count}, numbered from 0")
    return torch.device("cuda", int(index))


def load_trained(
    run: Path, data: Path, split: str, device: str | None = None, text_encoder: str | None = None
) -> tuple[Matcher, PrecomputedCorpus]:
    """A model, from the output directory of `train` or its own, and a split that it can read.

    Raises a ValueError where the model cannot use the split's regions, or as ``use_device``.
    """
    from crossret.data import PrecomputedDataset
    from crossret.models.checkpoints import model_directory, reads_pictures

    if not reads_pictures(model_directory(run)):
        return load_for(run, PrecomputedDataset(data, split), device, text_encoder)
    from crossret.extraction import PictureSplit
    from crossret.models.base import encoder_of

    model, vocabulary = load_model_of(run, device, text_encoder)
    encoder = encoder_of(model)
    assert encoder is not None
    with warnings_as_lines():
        images = PictureSplit(data, split, encoder.reader)
    return model, _readable(model, vocabulary, images)


def load_for(
    run: Path, images: PrecomputedDataset, device: str | None = None, text_encoder: str | None = None
) -> tuple[Matcher, PrecomputedCorpus]:
    """Model and split as by ``load_trained``, of features that have been opened."""
    model, vocabulary = load_model_of(run, device, text_encoder)
    return model, _readable(model, vocabulary, images)


def _readable(model: Matcher, vocabulary: Vocabulary | None, images: PrecomputedDataset) -> PrecomputedCorpus:
    """Split as a model reads it; a ValueError where it cannot."""
    from crossret.data.corpus import PrecomputedCorpus, check_readable
    from crossret.models.base import text_reader_of
    from crossret.models.texts import check_same_encoder

    corpus = PrecomputedCorpus(images, vocabulary, text_reader_of(model))
    check_readable(model.config, corpus)
    if corpus.has_tokens:
        check_same_encoder(model, images)
    return corpus


def load_model_of(
    run: Path, device: str | None = None, text_encoder: str | None = None
) -> tuple[Matcher, Vocabulary | None]:
    """A model, from the output directory of `train` or its own, where --device says, and its vocabulary, if any.

    Raises an OSError or a ValueError where there is none, or as ``use_device``.
    """
    from crossret.models.checkpoints import load_model, model_directory

    place = use_device(device)
    directory = model_directory(run)
    model, vocabulary = load_model(directory, text_encoder=text_encoder)
    words = "tokens" if vocabulary is None else f"{len(vocabulary):,} words"
    _logger.info("%s: %s of %s, on %s", directory, model.kind, words, place)
    return model.to(place), vocabulary
