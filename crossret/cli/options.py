"""Options that several commands have, and what is done with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from crossret.corpus import PrecomputedCorpus
    from crossret.models import Matcher
    from crossret.models.scan import ScanConfig

Direction = Literal["t2i", "i2t"]
RawFeatureNorm = Literal["softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm"]
Pooling = Literal["lse", "avg", "sum", "max"]


def option(text: str, *names: str, **settings: Any) -> Any:
    """An option of a command with its help text."""
    return typer.Option(*names, help=text, **settings)


def in_a_directory(path: Path | None) -> Path | None:
    """A file to write is checked when the command starts, not after minutes of work."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}")
    return path


Threads = Annotated[int | None, option("CPU threads; by default one a core.", min=1, max=1024)]
Seed = Annotated[int, option("Decides everything that is random.", min=0, max=2**63 - 1)]
DataDirectory = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, help="Data in the precomputed-feature format: SPLIT_ims.npy, SPLIT_caps.txt."
    ),
]
RegionLengths = Annotated[
    Path | None, option("Regions of each image, .npy of integers; by default all.", exists=True, dir_okay=False)
]
WordLengths = Annotated[
    Path | None, option("Words of each caption, .npy of integers; by default all.", exists=True, dir_okay=False)
]


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user gave a value."""
    return {name: value for name, value in options.items() if value is not None}


def refuse_unused(config: ScanConfig, options: dict[str, Any]) -> None:
    """Raise a ValueError that names an option with a value that this model would ignore."""
    for name in config.unused():
        if options.get(name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} makes no difference to cross attention {config.cross_attention} with "
                f"pooling {config.pooling} and raw_feature_norm {config.raw_feature_norm}: leave it out"
            )


def use_threads(threads: int | None) -> None:
    """As many threads as --threads says."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def load_trained(run: Path, data: Path, split: str) -> tuple[Matcher, PrecomputedCorpus]:
    """A model, from the output directory of `train` or its own, and a split that it can read.

    Raises a ValueError where the split's regions are of another size than the model's.
    """
    from crossret.checkpoints import load_model
    from crossret.corpus import PrecomputedCorpus
    from crossret.data import PrecomputedDataset
    from crossret.training import BEST

    model, vocabulary = load_model(run / BEST if (run / BEST).is_dir() else run)
    corpus = PrecomputedCorpus(PrecomputedDataset(data, split), vocabulary)
    if corpus.image_dim != model.config.image_dim:
        raise ValueError(
            f"{data}: regions have {corpus.image_dim} features, the model of {run} {model.config.image_dim}"
        )
    return model, corpus
