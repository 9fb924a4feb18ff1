"""The command that learns: `train`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossret import system
from crossret.cli.errors import Interrupted, refuse, warnings_as_lines
from crossret.cli.options import (
    Device,
    Seed,
    Threads,
    file_to_read,
    kind_of,
    option,
    use_device,
    use_threads,
)
from crossret.cli.output import say
from crossret.cli.run_config import of_file, overrules, typed, use_config, write_config
from crossret.cli.schedule_options import settings_of_options, with_schedule_options
from crossret.hyperparameters import MODEL_CONFIGS
from crossret.hyperparameters.model import Loss
from crossret.hyperparameters.settings import overlaid, parse_settings, texts_of
from crossret.hyperparameters.training import ENCODER_RATE

CONFIG = "run.toml"
_MIN_COUNT = 4  # SCAN's


@with_schedule_options
def train(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Data in the precomputed-feature format: SPLIT_ims.npy, SPLIT_caps.txt; with --encoder pictures.",
        ),
    ],
    output: Annotated[
        Path,
        option("Directory for the checkpoint, logs, curves, run.toml and best/, the best model.", file_okay=False),
    ],
    config: Annotated[
        Path | None,
        option(
            f"Take the settings of this file, for instance an earlier run's {CONFIG}; what is typed beside it wins.",
            exists=True,
            dir_okay=False,
            is_eager=True,
            callback=use_config,
            metavar="<run.toml>",
        ),
    ] = None,
    model: Annotated[
        str | None, option("Which model; by default scan.", metavar=f"[{'|'.join(MODEL_CONFIGS)}]")
    ] = None,
    preset: Annotated[
        str | None,
        option(
            "The paper's setting to start from, as `crossret presets` lists them. By default the model's first; "
            "scan's is that of cross_attention.",
            metavar="<name>",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "Set a hyper-parameter of the model, as `crossret presets MODEL` lists them, or one of the options of its "
            'schedule; may be repeated, or take several: "layers=3 p=4".',
            "--set",
            metavar="<field=value>",
        ),
    ] = None,
    loss: Annotated[Loss | None, option("Loss of the scores, as --set loss=... says it; by default triplet.")] = None,
    fine_tune: Annotated[
        Path | None,
        option(
            "Start from this trained model, its weights, words and hyper-parameters; a preset then only sets how to "
            "train. With --resume its words are still read.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        option(
            "Read pictures through this vision model, which is trained, too: its folder, or its name on the Hub. "
            "DATA has SPLIT.tsv (.csv, .token, .json, .jsonl) of captions and pictures in SPLIT/, or SPLIT_caps.txt "
            "and images/SPLIT/.",
        ),
    ] = None,
    text_encoder: Annotated[
        str | None,
        option(
            "Read captions through this encoder of texts, likewise: of BERT's kind, or the tower of CLIP or SigLIP."
        ),
    ] = None,
    encoder_learning_rate: Annotated[
        str | None,
        option(
            f"The encoders' learning rate, which falls as the rest's; by default {ENCODER_RATE}.", metavar="<float>"
        ),
    ] = None,
    freeze_encoder: Annotated[
        bool, option("Keep the encoder as it is: pictures are encoded at every step.", "--freeze-encoder")
    ] = False,
    freeze_text_encoder: Annotated[bool, option("Likewise the encoder of texts.", "--freeze-text-encoder")] = False,
    checkpoint_encoder: Annotated[
        bool,
        option(
            "Compute the encoders' activations again for their gradients: less memory, more time.",
            "--checkpoint-encoder",
        ),
    ] = False,
    dev_images: Annotated[
        int | None,
        option("Only so many first images of the dev split decide; the published SCAN takes 1000 of MS-COCO.", min=1),
    ] = None,
    captions: Annotated[
        Literal["tokens", "words"] | None,
        option(
            "What the model reads of captions: SPLIT_words, tokens of a pretrained encoder as `extract --text-encoder` "
            "writes them, or words, whose embeddings it learns. By default tokens where train and dev have them."
        ),
    ] = None,
    vocabulary: Annotated[
        Path | None,
        file_to_read(
            "Take the words of this file, as vocab.py of the published code wrote it, .json or .pkl. By default words "
            "are those of the train split."
        ),
    ] = None,
    count_dev: Annotated[
        bool, option("Count the words of the dev split, too, as the published vocab.py does.", "--count-dev")
    ] = False,
    min_count: Annotated[
        int | None, option(f"Words that occur less often are <unk>; by default {_MIN_COUNT}.", min=1)
    ] = None,
    word_vectors: Annotated[
        Path | None,
        file_to_read(
            "Start the word embeddings from this file: GloVe's or word2vec's text, word2vec's .bin, gensim's "
            "KeyedVectors, or Skip-Thoughts' utable.npy beside its dictionary.txt. --resume ignores it."
        ),
    ] = None,
    *,
    schedule: Any,
    seed: Seed = 0,
    resume: Annotated[bool, option("Go on from the checkpoint in the output directory.", "--resume")] = False,
    log: Annotated[
        list[str] | None,
        option(
            "Also log to steps.csv and epochs.csv, tensorboard/ or Weights & Biases; may be repeated.",
            metavar="[csv|tensorboard|wandb]",
        ),
    ] = None,
    device: Device = None,
    gpu_features: Annotated[
        float | None,
        option(
            "GiB of the GPU's memory that features may take, so that no step copies any; by default half of what is "
            "free. A split that does not fit is read batch by batch.",
            min=0,
        ),
    ] = None,
    threads: Threads = None,
    rank_timeout: Annotated[
        float, option("With torchrun: seconds without an answer after which another rank counts as lost.", min=1)
    ] = 600.0,
) -> None:
    """Train a model.

    Learns from the train split; the dev split decides which epoch was best.
    Settings left out take the preset's value, the schedule's included; what a model
    has to set is listed by `crossret presets MODEL`.
    Ctrl-C, SIGTERM and SIGHUP leave a checkpoint: the same command with --resume goes
    on as if nothing had happened, bit for bit with the same number of threads, CPU
    instructions and device.

    Processes that torchrun starts share every batch and take the steps that one would;
    a training goes on with any number of them.

    \b
    Examples:
      crossret train data/f30k_precomp --output runs/scan
      crossret train data/coco_precomp --output runs/i2t --preset coco_i2t_lse --set negatives=sum
      crossret train data/f30k_precomp --output runs/sman --model sman --word-vectors glove.txt --set word_dim=300
      crossret train scenes --output runs/han --model han --preset scenes --set "layers=3 p=4"
      crossret train data/coco_precomp --output runs/oan --model oan --preset coco --resume
      crossret train --config runs/scan/run.toml --output runs/again --seed 1
      torchrun --nproc-per-node 2 -m crossret train scenes --output runs/two
      crossret train scenes --output runs/tuned --fine-tune runs/scan --epochs 3 --learning-rate 1e-5
      crossret train photographs --output runs/mine --encoder facebook/dinov2-base --encode-chunk 8 --amp
      crossret train photographs --output runs/clip --encoder models/clip --text-encoder models/clip
    """
    import torch
    from rich.console import Console

    from crossret.cli.commands.starts import fine_tuned, new_model, readers_of, trained_parts, with_encoder_rate
    from crossret.compat.checkpoints import read_vocabulary
    from crossret.data import PrecomputedDataset, Vocabulary
    from crossret.data.corpus import PrecomputedCorpus, fields_of_data, have_tokens
    from crossret.data.vocabulary import word_counts
    from crossret.data.word_vectors import start_from_word_vectors
    from crossret.distributed.torchrun import is_first, joined, own_device
    from crossret.extraction import PictureSplit
    from crossret.models.base import ENCODER, TEXT_ENCODER, pretrained_parts
    from crossret.models.texts import check_same_encoder
    from crossret.terminal import facts_table
    from crossret.training import CHECKPOINT
    from crossret.training import train as run_training
    from crossret.training.callbacks import LOGS, Callback, Curves, Start
    from crossret.training.summary import facts_of

    options = {"settings": settings, "loss": loss, **vars(schedule)}
    texts = settings_of_options(**typed(context, options))
    if not (overrules(context, "model") or overrules(context, "preset")):
        # A file's settings hang on its model and preset: they do not count where another of these was typed.
        texts = overlaid(settings_of_options(**of_file(context, options)), texts)
    if overrules(context, "model"):
        preset = typed(context, {"preset": preset})["preset"]
    counting: dict[str, Any] = {"min_count": min_count, "count_dev": count_dev}
    if fine_tune is not None:
        refuse(
            typed(context, {"captions": captions, "vocabulary": vocabulary, **counting, "word_vectors": word_vectors}),
            "makes no difference with --fine-tune",
        )
        captions = vocabulary = word_vectors = None
    elif vocabulary is not None:
        refuse(typed(context, counting), "makes no difference with --vocabulary")
    for name in log or ():
        if name not in LOGS:
            raise ValueError(f"--log must be one of {', '.join(LOGS)}, not {name!r}")
    place = own_device(use_device(device))
    if place.type == "cpu":
        refuse(typed(context, {"gpu_features": gpu_features}), "makes no difference on the CPU")
    use_threads(threads)
    system.return_large_blocks()
    own = {}
    if fine_tune is not None:
        network, words, chosen = fine_tuned(fine_tune, model, preset, texts)
        own = pretrained_parts(network)
    given = {ENCODER: encoder, TEXT_ENCODER: text_encoder}
    for part in own:
        refuse(typed(context, {part: given[part]}), f"makes no difference: {fine_tune} has an encoder")
        given[part] = None
    frozen = {ENCODER: freeze_encoder, TEXT_ENCODER: freeze_text_encoder}
    readers = readers_of(given, own)
    trained = trained_parts(readers, frozen, encoder_learning_rate, checkpoint_encoder)
    of_pictures, of_texts = readers.get(ENCODER), readers.get(TEXT_ENCODER)
    with warnings_as_lines():
        training_data, dev_data = (
            PrecomputedDataset(data, split) if of_pictures is None else PictureSplit(data, split, of_pictures)
            for split in ("train", "dev")
        )
    judging = dev_data if dev_images is None else dev_data.first(dev_images)
    counts: Counter[str] = Counter()
    if fine_tune is not None:
        if words is not None:
            counts = word_counts(training_data.captions, network.config.max_words)
    else:
        of_words = typed(context, {"vocabulary": vocabulary, **counting, "word_vectors": word_vectors})
        if of_texts is not None:
            refuse({**typed(context, {"captions": captions}), **of_words}, "makes no difference with --text-encoder")
            captions = None
        elif captions is None:
            captions = "tokens" if have_tokens(training_data, dev_data) else "words"
            if captions == "words" and (training_data.has_words or dev_data.has_words) and is_first():
                say(f"{data}: only one of train and dev has tokens of captions, SPLIT_words: words are learnt")
        if captions == "tokens":
            refuse(of_words, "makes no difference to tokens of captions: it is for --captions words")
        if captions != "words":
            vocabulary = word_vectors = None
        chosen = parse_settings(kind_of("scan" if model is None else model), preset, texts)
        words = Vocabulary([]) if captions == "words" else None  # before they are known
        sized_by = PrecomputedCorpus(training_data, words, of_texts)
        setting = chosen.config(**fields_of_data(MODEL_CONFIGS[chosen.model], sized_by))
        if vocabulary is not None:
            words = read_vocabulary(vocabulary)
        if words is not None:
            counts = word_counts(training_data.captions, setting.max_words)
            if vocabulary is None:
                counted = counts + word_counts(dev_data.captions, setting.max_words) if count_dev else counts
                words = Vocabulary.of_counts(counted, min_count or _MIN_COUNT)
            setting = dataclasses.replace(setting, vocabulary_size=len(words))
        network = new_model(setting, seed)
        if captions == "tokens":
            network.captions_by = training_data.words_by
    if of_texts is not None:
        network.captions_by = None  # which its own encoder replaces
    if of_texts is None and words is None:
        network.captions_by = network.captions_by or training_data.words_by
        for split_data in (training_data, dev_data):
            check_same_encoder(network, split_data)
    how = chosen.training(seed=seed)
    for part, reader in readers.items():
        if given[part] is not None:
            (network.read_pictures_by if part == ENCODER else network.read_texts_by)(reader)
        getattr(network, part).requires_grad_(part in trained)
        if part in trained:
            how = with_encoder_rate(how, part, encoder_learning_rate)
    if words is not None and word_vectors is not None and not resume:
        found = start_from_word_vectors(network.text.embed, words, word_vectors)
        if is_first():
            say(f"{word_vectors}: vectors of {found:,} of the {len(words):,} words")
    network.to(place)
    learnt, judged = (PrecomputedCorpus(split, words, of_texts) for split in (training_data, judging))

    class Announced(Callback):
        """Account of what is trained, in run.toml and in a few lines."""

        def on_start(self, start: Start) -> None:
            run: dict[str, Any] = {"data": data, "model": chosen.model, "preset": chosen.preset}
            run |= {"settings": [*texts_of(network.config), *texts_of(how)], "seed": seed}
            run |= {"fine_tune": fine_tune, "word_vectors": word_vectors, "log": log or None}
            run |= {"dev_images": dev_images, "captions": captions, "vocabulary": vocabulary}
            run |= {part: Path(name) if name and Path(name).is_dir() else name for part, name in given.items()}
            run |= {f"freeze_{part}": is_frozen or None for part, is_frozen in frozen.items()}
            run |= {"checkpoint_encoder": checkpoint_encoder or None}
            if fine_tune is None and vocabulary is None and words is not None:
                run |= {"min_count": min_count or _MIN_COUNT, "count_dev": count_dev}
            run |= {"gpu_features": gpu_features}
            run |= {"device": str(place) if group.size == 1 else place.type, "threads": torch.get_num_threads()}
            write_config(output / CONFIG, "train", run)
            facts = facts_of(start, learnt, judged, counts, group.size, dev_images=dev_data.n_images)
            Console(stderr=True).print(facts_table({"data": str(data), **facts, "output": str(output)}))

    try:
        with warnings_as_lines(), joined(place, rank_timeout) as group:
            result = run_training(
                network,
                learnt,
                judged,
                how,
                output,
                resume=resume,
                gpu_features=gpu_features,
                callbacks=[*(LOGS[name]() for name in dict.fromkeys(log or ())), Curves(), Announced()],
            )
    except KeyboardInterrupt:
        left = (output / CHECKPOINT).exists()
        hint = "to go on, repeat the command with --resume" if left else "there is no checkpoint yet"
        raise Interrupted(hint) from None
    if not is_first():
        return
    early = f", none better in {how.patience} more" if result.ended_early else ""
    best = f"rsum {result.best_rsum:.1f}"
    if how.select_by == "r1":
        best = f"R@1 {result.metrics.i2t.r1:.1f} / {result.metrics.t2i.r1:.1f}, {best}"
    say(f"Best epoch {result.best_epoch} of {result.epochs_run}{early}: {best}; {output / 'best'}")
