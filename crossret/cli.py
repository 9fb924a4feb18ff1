"""The `crossret` command line: what a user types, and one line for what they typed wrong."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer
from typer.exceptions import TyperException

from crossret.presets import PRESET_OF_CROSS_ATTENTION, SCAN_PRESETS, SCHEDULES

if TYPE_CHECKING:
    from crossret.models.scan import ScanConfig
    from crossret.score_files import Scorer

# Commands import what they need when they run: torch alone takes seconds, and --help needs none of it.

app = typer.Typer(
    name="crossret",
    epilog="Start with: crossret demo",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

Direction = Literal["t2i", "i2t"]
CrossAttention = Literal["t2i", "i2t", "sum_max_t2i", "sum_max_i2t", "ensemble"]
RawFeatureNorm = Literal["softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm"]
Pooling = Literal["lse", "avg", "sum", "max"]


def _option(text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, **settings)


def _in_a_directory(path: Path | None) -> Path | None:
    """A file to write is checked when the command starts, not after minutes of work."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}")
    return path


Threads = Annotated[int | None, _option("CPU threads; by default one a core.", min=1, max=1024)]
Seed = Annotated[int, _option("Decides everything that is random.", min=0, max=2**63 - 1)]


def _scheduled(field: str) -> str:
    return "by default " + ", ".join(f"{schedule[field]:g} ({name})" for name, schedule in SCHEDULES.items())


DataDirectory = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, help="Data in the precomputed-feature format: SPLIT_ims.npy, SPLIT_caps.txt."
    ),
]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 the user's mistake in one line on standard error, 130 interrupted.

    The only place that words such mistakes: commands raise ValueError or OSError for what they cannot use.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no arrows still gets its figures
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="crossret", standalone_mode=False)
        if status == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _fail("interrupted", INTERRUPTED)
    except _Interrupted as error:
        _fail(f"interrupted; {error}", INTERRUPTED)
    except TyperException as error:
        _fail(error.format_message())
    except MemoryError as error:
        _fail(f"not enough memory: {error}")
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except (ValueError, FloatingPointError) as error:
        _fail(str(error))
    except RuntimeError as error:
        from crossret_kernels import UnsupportedByBackend

        if "DefaultCPUAllocator" in str(error):  # the only mark of torch's allocation errors on the CPU
            _fail(f"not enough memory: {str(error).splitlines()[0]}")
        if not isinstance(error, UnsupportedByBackend):
            raise
        _fail(str(error))
    sys.exit(status)


class _Interrupted(Exception):
    """Ctrl-C in a command that can say what it leaves."""


def _fail(message: str, status: int = 2) -> NoReturn:
    print("crossret:", " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"crossret {metadata.version('crossret')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _crossret(
    context: typer.Context,
    version: Annotated[
        bool, _option("Print the version and exit.", "--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Cross-attention image-text retrieval: render scenes, train, evaluate, score."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    output: Annotated[Path, _option("Directory for everything that the demo makes.", file_okay=False)] = Path(
        "demo-output"
    ),
    images: Annotated[int, _option("Training images; an eighth as many to develop, a quarter to test.", min=16)] = 4000,
    epochs: Annotated[int, _option("Passes over the training captions.", min=1)] = 4,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Do everything once, on rendered scenes.

    Renders scenes, trains SCAN on them, evaluates retrieval, draws where the words
    look: at most four minutes on two cores. Prints tables; leaves the scenes, the
    trained model, report.json, training.png and attention/*.png in the output
    directory.

    \b
    Examples:
      crossret demo
      crossret demo --output /tmp/demo --images 400 --epochs 2
    """
    from rich.console import Console

    from crossret.demo import run_demo

    _use_threads(threads)
    try:
        run_demo(output, images=images, epochs=epochs, seed=seed, console=Console(emoji=False))
    except KeyboardInterrupt:
        raise _Interrupted(f"{output} holds what was done, the same command starts anew") from None


@app.command("render-scenes")
def render_scenes(
    directory: Annotated[Path, typer.Argument(file_okay=False, help="Directory to write, made if absent.")],
    train: Annotated[int, _option("Training images.", min=1)] = 4000,
    dev: Annotated[int, _option("Development images.", min=1)] = 500,
    test: Annotated[int, _option("Test images.", min=1)] = 1000,
    seed: Seed = 0,
    workers: Annotated[int | None, _option("Processes; by default one a core.", min=1, max=1024)] = None,
) -> None:
    """Render a data set of scenes.

    Writes pictures, captions, region boxes and features, and which object every
    noun names.

    \b
    Examples:
      crossret render-scenes scenes
      crossret render-scenes small --train 200 --dev 50 --test 50 --seed 1
    """
    from crossret.data.scenes.render import render_scenes as render
    from crossret.report import progress_bar

    with progress_bar("rendering") as progress:
        render(directory, train=train, dev=dev, test=test, seed=seed, workers=workers, progress=progress)


@app.command()
def train(
    data: DataDirectory,
    output: Annotated[
        Path, _option("Directory for the checkpoint, the log and best/, the best model.", file_okay=False)
    ],
    preset: Annotated[
        str | None,
        _option(
            f"The paper's setting to start from: {', '.join(SCAN_PRESETS)}. By default that of --cross-attention: "
            f"{', '.join(PRESET_OF_CROSS_ATTENTION.values())}. Two directions are one model with shared encoders; the "
            "paper's ensembles are two models trained apart.",
            metavar="<name>",
        ),
    ] = None,
    cross_attention: Annotated[CrossAttention | None, _option("Who attends to whom; by default t2i.")] = None,
    raw_feature_norm: Annotated[RawFeatureNorm | None, _option("Normalisation of similarities.")] = None,
    clip_slope: Annotated[float | None, _option("Slope of the clip below zero; the paper's is 0.")] = None,
    lambda_softmax: Annotated[float | None, _option("Inverse temperature of the attention.")] = None,
    pooling: Annotated[Pooling | None, _option("How relevances become a score.")] = None,
    lambda_lse: Annotated[float | None, _option("Sharpness of LSE pooling.")] = None,
    i2t_lambda_softmax: Annotated[float | None, _option("As --lambda-softmax, of i2t in an ensemble.")] = None,
    i2t_pooling: Annotated[Pooling | None, _option("As --pooling, of i2t in an ensemble.")] = None,
    i2t_lambda_lse: Annotated[float | None, _option("As --lambda-lse, of i2t in an ensemble.")] = None,
    margin: Annotated[float | None, _option("Margin of the triplet loss.")] = None,
    negatives: Annotated[Literal["hardest", "sum"] | None, _option("Negatives of the triplet loss.")] = None,
    embed_dim: Annotated[int | None, _option("Dimensions in which regions and words meet.")] = None,
    word_dim: Annotated[int | None, _option("Dimensions of a word's embedding.")] = None,
    region_count: Annotated[int | None, _option("Use an image's first regions only.")] = None,
    bidirectional: Annotated[bool | None, _option("Read captions both ways, or forward only.")] = None,
    image_norm: Annotated[bool | None, _option("L2-normalise regions.")] = None,
    text_norm: Annotated[bool | None, _option("L2-normalise words.")] = None,
    epochs: Annotated[int | None, _option(f"Passes over the training captions; {_scheduled('epochs')}.")] = None,
    batch_size: Annotated[int, _option("Captions a step.")] = 128,
    learning_rate: Annotated[float | None, _option(f"Adam's; {_scheduled('learning_rate')}.")] = None,
    decay_epoch: Annotated[
        int | None, _option(f"Epochs before the rate is divided by 10; {_scheduled('decay_epoch')}.")
    ] = None,
    seed: Seed = 0,
    resume: Annotated[bool, _option("Go on from the checkpoint in the output directory.", "--resume")] = False,
    threads: Threads = None,
) -> None:
    """Train SCAN.

    Learns from the train split; the dev split decides which epoch was best.
    Options left out take the preset's value, the schedule's included. Ctrl-C leaves
    a checkpoint: the same command with --resume goes on as if nothing had happened,
    bit for bit with the same number of threads and the same CPU instructions.

    \b
    Examples:
      crossret train data/f30k_precomp --output runs/f30k
      crossret train data/coco_precomp --output runs/coco --preset coco_i2t_lse
      crossret train scenes --output run --embed-dim 256 --negatives sum --epochs 8 --decay-epoch 7 --learning-rate 1e-3
      crossret train data/f30k_precomp --output runs/f30k --resume
    """
    import torch

    from crossret.corpus import PrecomputedCorpus
    from crossret.data import PrecomputedDataset, Vocabulary
    from crossret.models.scan import Scan, ScanConfig
    from crossret.training import CHECKPOINT, TrainingConfig
    from crossret.training import train as run_training

    chosen = {
        "cross_attention": cross_attention,
        "raw_feature_norm": raw_feature_norm,
        "clip_slope": clip_slope,
        "lambda_softmax": lambda_softmax,
        "pooling": pooling,
        "lambda_lse": lambda_lse,
        "i2t_lambda_softmax": i2t_lambda_softmax,
        "i2t_pooling": i2t_pooling,
        "i2t_lambda_lse": i2t_lambda_lse,
        "margin": margin,
        "negatives": negatives,
        "embed_dim": embed_dim,
        "word_dim": word_dim,
        "region_count": region_count,
        "bidirectional": bidirectional,
        "image_norm": image_norm,
        "text_norm": text_norm,
    }
    preset = preset or PRESET_OF_CROSS_ATTENTION[cross_attention or "t2i"]
    _use_threads(threads)
    training_data, dev_data = PrecomputedDataset(data, "train"), PrecomputedDataset(data, "dev")
    vocabulary = Vocabulary.build(training_data.captions)
    config = ScanConfig.preset(
        preset, image_dim=training_data.image_dim, vocabulary_size=len(vocabulary), **_given(chosen)
    )
    _refuse_unused(config, chosen)
    schedule = TrainingConfig.preset(
        preset.split("_")[0],
        batch_size=batch_size,
        seed=seed,
        **_given({"epochs": epochs, "learning_rate": learning_rate, "decay_epoch": decay_epoch}),
    )
    _check_memory(config)
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            result = run_training(
                Scan(config),
                PrecomputedCorpus(training_data, vocabulary),
                PrecomputedCorpus(dev_data, vocabulary),
                schedule,
                output,
                resume=resume,
            )
    except KeyboardInterrupt:
        left = (output / CHECKPOINT).exists()
        hint = "to go on, repeat the command with --resume" if left else "there is no checkpoint yet"
        raise _Interrupted(hint) from None
    typer.echo(f"Best epoch {result.best_epoch} of {result.epochs_run}: rsum {result.best_rsum:.1f}; {output / 'best'}")


@app.command()
def evaluate(
    run: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Output directory of `train`, or a model's own.")
    ],
    data: DataDirectory,
    split: Annotated[str, _option("Which SPLIT_ims.npy and SPLIT_caps.txt.")] = "test",
    five_fold: Annotated[bool, _option("Means over five folds, as MS-COCO's 1K results.", "--five-fold")] = False,
    json: Annotated[
        Path | None, _option("Also write the figures to this file.", dir_okay=False, callback=_in_a_directory)
    ] = None,
    threads: Threads = None,
) -> None:
    """Measure a trained model's retrieval.

    Prints recall at 1, 5 and 10, median and mean rank, both ways.

    \b
    Examples:
      crossret evaluate runs/scenes scenes
      crossret evaluate runs/coco data/coco_precomp --split testall --five-fold --json coco.json
    """
    from rich.console import Console

    from crossret import evaluation
    from crossret.checkpoints import load_model
    from crossret.corpus import PrecomputedCorpus
    from crossret.data import PrecomputedDataset
    from crossret.report import progress_bar, retrieval_table, write_json
    from crossret.training import BEST

    _use_threads(threads)
    model, vocabulary = load_model(run / BEST if (run / BEST).is_dir() else run)
    corpus = PrecomputedCorpus(PrecomputedDataset(data, split), vocabulary)
    if corpus.image_dim != model.config.image_dim:
        raise ValueError(
            f"{data}: regions have {corpus.image_dim} features, the model of {run} {model.config.image_dim}"
        )
    if five_fold and corpus.n_images % 5:
        raise ValueError(f"--five-fold: the {corpus.n_images} images of {split} cannot be divided into 5 equal folds")
    with progress_bar("encoding") as progress:
        images, captions = evaluation.encode_dataset(model, corpus, progress=progress)
    with progress_bar("scoring") as progress:
        scores = evaluation.score_matrix(model, images, captions, progress=progress)
    measure = evaluation.five_fold if five_fold else evaluation.retrieval_metrics
    metrics = measure(scores, corpus.image_of_caption)
    if json is not None:
        write_json(json, {"split": split, "five_fold": five_fold, "images": corpus.n_images, **metrics.as_dict()})
    folds = ", means of five folds" if five_fold else ""
    Console(emoji=False).print(
        retrieval_table(metrics, f"{split}: {corpus.n_images:,} images, {corpus.n_captions:,} captions{folds}")
    )


@app.command()
def score(
    regions: Annotated[
        Path, _option("Region features (images, regions, dimensions), .npy.", exists=True, dir_okay=False)
    ],
    words: Annotated[Path, _option("Word features (captions, words, dimensions), .npy.", exists=True, dir_okay=False)],
    output: Annotated[
        Path, _option("Scores (images, captions) float32, .npy, to write.", dir_okay=False, callback=_in_a_directory)
    ],
    region_lengths: Annotated[
        Path | None, _option("Regions of each image, .npy of integers; by default all.", exists=True, dir_okay=False)
    ] = None,
    word_lengths: Annotated[
        Path | None, _option("Words of each caption, .npy of integers; by default all.", exists=True, dir_okay=False)
    ] = None,
    direction: Annotated[Direction, _option("t2i: words attend to regions; i2t: regions to words.")] = "t2i",
    raw_feature_norm: Annotated[
        RawFeatureNorm | None, _option("Normalisation of similarities; by default clipped_l2norm.")
    ] = None,
    clip_slope: Annotated[
        float | None, _option("Slope of the clip below zero; by default 0.1, the paper's is 0.")
    ] = None,
    lambda_softmax: Annotated[
        float | None, _option("Inverse temperature of the attention; by default 9 (the paper's i2t: 4).")
    ] = None,
    pooling: Annotated[Pooling | None, _option("How relevances become a score; by default avg.")] = None,
    lambda_lse: Annotated[float | None, _option("Sharpness of LSE pooling; by default 6.")] = None,
    normalize: Annotated[bool, _option("L2-normalise all features first.", "--normalize")] = False,
    sum_max: Annotated[
        bool, _option("Instead of attention, sum each query's largest similarity.", "--sum-max")
    ] = False,
    threads: Threads = None,
) -> None:
    """Score files of features.

    Every image with every caption, in bounded memory: features in, a matrix of
    scores out.

    \b
    Examples:
      crossret score --regions regions.npy --words words.npy --word-lengths lengths.npy --output scores.npy
      crossret score --regions regions.npy --words words.npy --output scores.npy --sum-max --normalize
    """
    from functools import partial

    from crossret.models.scan import ScanConfig
    from crossret.report import progress_bar
    from crossret.score_files import score_files
    from crossret_kernels import maxsim_scores, scan_scores

    chosen = {
        "raw_feature_norm": raw_feature_norm,
        "clip_slope": clip_slope,
        "lambda_softmax": lambda_softmax,
        "pooling": pooling,
        "lambda_lse": lambda_lse,
    }
    # Options mean what they mean to a model, and have the same ranges; its sizes play no part.
    cross_attention = f"sum_max_{direction}" if sum_max else direction
    config = ScanConfig.from_dict(
        {"image_dim": 1, "vocabulary_size": 1, "cross_attention": cross_attention, **_given(chosen)}
    )
    _refuse_unused(config, chosen)
    _use_threads(threads)
    scorer: Scorer
    if sum_max:
        scorer = partial(maxsim_scores, direction=direction, normalize=normalize)
    else:
        scorer = partial(scan_scores, **config.attention_options(direction), normalize=normalize)
    with progress_bar("scoring") as progress:
        n, m = score_files(
            scorer,
            regions,
            words,
            output,
            region_lengths=region_lengths,
            word_lengths=word_lengths,
            progress=progress,
        )
    typer.echo(f"{output}: scores of {n:,} images with {m:,} captions")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user gave a value."""
    return {name: value for name, value in options.items() if value is not None}


def _refuse_unused(config: ScanConfig, options: dict[str, Any]) -> None:
    """Raise a ValueError that names an option with a value that this model would ignore."""
    for name in config.unused():
        if options.get(name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} makes no difference to cross attention {config.cross_attention} with "
                f"pooling {config.pooling} and raw_feature_norm {config.raw_feature_norm}: leave it out"
            )


def _check_memory(config: ScanConfig) -> None:
    """Raise a ValueError where the weights, their gradients and Adam's two averages exceed this machine's memory."""
    import torch

    from crossret.models.scan import Scan

    with torch.device("meta"):
        numbers = sum(parameter.numel() for parameter in Scan(config).parameters())
    needed, there = 4 * 4 * numbers, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"embed_dim {config.embed_dim}, word_dim {config.word_dim} and {config.vocabulary_size} words make a model "
            f"that takes {needed / 2**30:,.0f} GiB to train; this machine has {there / 2**30:,.0f} GiB"
        )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line without the place in the code, instead of ``warnings.showwarning``."""
    typer.echo(f"crossret: warning: {' '.join(str(message).split())}", err=True)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
