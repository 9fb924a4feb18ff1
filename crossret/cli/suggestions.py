"""Suggestions for an option that a command has not, by other programs' names for the same thing."""

from __future__ import annotations

import difflib
from typing import Any

from crossret.hyperparameters import MODEL_CONFIGS
from crossret.hyperparameters.settings import settable

# Other names of an option, a setting or an argument here: in other programs for training and retrieval, in
# the papers' published code, or by who guesses; in lower case and with hyphens between words, none before them.
_CALLED = {
    "--accumulate": "grad-accum gradient-accumulation gradient-accumulation-steps accumulate-grad-batches",
    "--amp": "fp16 bf16 bfloat16 half mixed-precision autocast",
    "--batch-size": "b bs batch train-batch-size per-device-train-batch-size",
    "--checkpoint-every": "save-every save-steps checkpoint-steps val-step",
    "--decay-epochs": "lr-update lr-decay lr-step milestones",
    "--dev-images": "val-images val-size dev-size",
    "--device": "gpu gpus gpu-id cuda accelerator",
    "--encode-chunk": "chunk-size mini-batch-size gradient-cache",
    "--epochs": "e num-epochs n-epochs max-epochs num-train-epochs",
    "--fine-tune": "pretrained init-from init checkpoint-path load",
    "--five-fold": "fold5 folds cross-validation",
    "--gradient-norm": "grad-clip clip-grad clip-norm max-grad-norm gradient-clip gradient-clip-val",
    "--learning-rate": "lr eta step-size",
    "--log": "csv tensorboard tb wandb log-with report-to",
    "--log-every": "log-step log-steps log-interval logging-steps print-freq",
    "--min-count": "threshold min-freq min-frequency",
    "--model": "m arch architecture",
    "--optimizer": "optim opt",
    "--output": "o out out-dir output-dir save-dir logger-name model-dir dest json",
    "--patience": "early-stopping early-stop",
    "--resume": "continue resume-from resume-from-checkpoint",
    "--seed": "random-seed manual-seed random-state",
    "--select-by": "metric monitor best-metric metric-for-best-model",
    "--split": "set subset partition",
    "--threads": "num-threads cpus n-jobs jobs j num-workers",
    "--vocabulary": "vocab vocab-path vocab-file",
    "--warmup-steps": "warmup num-warmup-steps",
    "--weight-decay": "wd l2 decay",
    "--word-vectors": "glove word2vec w2v embeddings pretrained-embeddings",
    "-k": "topk top-k top n num-results",
    "data": "dataset data-dir data-path",
    "run": "model m checkpoint",
    "embed_dim": "embed-size embedding-dim hidden-size hidden-dim dim joint-dim",
    "heads": "num-heads n-heads attention-heads",
    "image_norm": "imgnorm",
    "lambda_softmax": "temperature temp tau",
    "layers": "num-layers n-layers depth",
    "max_words": "max-len max-length max-seq-length max-tokens",
    "negatives": "max-violation hard-negatives hardest",
    "pooling": "agg-func aggregation",
    "text_norm": "txtnorm",
    "word_dim": "word-size",
}


def suggestion(error: Any) -> str | None:
    """Suggestion for an option that its command has not, where it is known by another name.

    Args:
        error: raised by the parser of a command line.

    Returns:
        One line that names the options, settings or arguments of the command that are meant; None where there are none,
        or the error is another.
    """
    command = getattr(getattr(error, "ctx", None), "command", None)
    if command is None or not hasattr(error, "possibilities"):
        return None
    there = sorted({name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)})
    if "--set" in there:
        there += dict.fromkeys(name for config in MODEL_CONFIGS.values() for name in settable(config))
    typed = _plain(error.option_name)
    names = {_plain(name): name for name in reversed(there)}
    meant = [names[typed]] if typed in names else [name for name in there if typed in _CALLED.get(name, "").split()]
    if not meant:
        meant = [names[name] for name in difflib.get_close_matches(typed, names, n=1, cutoff=0.75)]
    return f"{error.message}; did you mean {' or '.join(_spelt(name, command) for name in meant)}?" if meant else None


def _spelt(name: str, command: Any) -> str:
    if name.startswith("-"):
        return name
    if any(name in parameter.opts for parameter in command.params):
        return f"{name.upper()}, which is given without a name"
    return f"--set {name}=..."


def _plain(option: str) -> str:
    return option.lstrip("-").lower().removeprefix("no-").replace("_", "-")
