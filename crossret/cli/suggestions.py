"""What somebody means who types an option that a command has not, by other programs' names for the same thing."""

from __future__ import annotations

from typing import Any

# By an option here, or an argument, what else it is called: in other programs for training and retrieval, in the
# papers' published code, or by who guesses; in lower case and with hyphens between words, without those before them.
_CALLED = {
    "--accumulate": "grad-accum gradient-accumulation gradient-accumulation-steps accumulation-steps grad-accum-steps "
    "accumulate-grad-batches",
    "--amp": "fp16 bf16 bfloat16 half mixed-precision autocast",
    "--batch-size": "b bs batch batchsize train-batch-size per-device-train-batch-size",
    "--bidirectional": "bi-gru bigru use-bi-gru",
    "--checkpoint-every": "save-every save-steps checkpoint-steps val-step",
    "--count-dev": "count-val count-validation vocabulary-splits",
    "--cross-attention": "cross-attn attention-direction",
    "--decay-epoch": "lr-update lr-decay decay-epochs lr-step milestones schedule",
    "--dev-images": "val-images val-size dev-size max-dev-images",
    "--device": "gpu gpus gpu-id cuda accelerator",
    "--embed-dim": "embed-size embedding-dim embedding-size hidden-size hidden-dim dim joint-dim",
    "--encode-chunk": "chunk-size mini-batch-size gradient-cache",
    "--epochs": "e epoch num-epochs n-epochs max-epochs num-train-epochs",
    "--fine-tune": "finetune pretrained init-from init checkpoint-path load",
    "--five-fold": "fold5 folds cross-validation",
    "--gradient-norm": "grad-clip clip-grad clip-grad-norm clip-norm grad-norm max-grad-norm gradient-clip clip "
    "gradient-clip-val",
    "--heads": "num-heads n-heads attention-heads",
    "--lambda-softmax": "temperature temp tau inverse-temperature",
    "--layers": "num-layers n-layers depth",
    "--learning-rate": "lr eta step-size",
    "--log": "csv tensorboard tb wandb log-with report-to",
    "--log-every": "log-step log-steps log-interval logging-steps print-freq",
    "--max-words": "max-len max-length max-seq-len max-seq-length max-tokens truncate",
    "--min-count": "threshold min-freq min-frequency",
    "--model": "m arch architecture model-name",
    "--negatives": "max-violation hard-negatives hardest",
    "--no-image-norm": "no-imgnorm",
    "--no-text-norm": "no-txtnorm",
    "--optimizer": "optim opt",
    "--output": "o out out-dir outdir output-dir save-dir save logger-name model-dir dest",
    "--patience": "early-stopping early-stop",
    "--pooling": "agg-func aggregation agg pool",
    "--resume": "continue resume-from resume-from-checkpoint",
    "--seed": "random-seed manual-seed random-state",
    "--select-by": "metric monitor best-metric metric-for-best-model",
    "--split": "set subset partition",
    "--threads": "num-threads n-threads cpus n-jobs jobs j workers num-workers",
    "--vocabulary": "vocab vocab-path vocab-file vocabulary-path",
    "--warmup-steps": "warmup warm-up warmup-step num-warmup-steps",
    "--weight-decay": "wd l2 decay",
    "--word-dim": "word-dims word-size",
    "--word-vectors": "glove word2vec w2v embeddings pretrained-embeddings",
    "--workers": "num-workers n-workers jobs j n-jobs processes",
    "-k": "topk top-k top n num-results",
    "data": "dataset data-dir data-path",
    "run": "model m checkpoint",
}


def suggestion(error: Any) -> str | None:
    """What to say of an option that its command has not, where it is known by another name.

    Args:
        error: what the parser of a command line raised.

    Returns:
        One line that names the options or arguments of the command that are meant; None where there are none, or the
        error is another.
    """
    command = getattr(getattr(error, "ctx", None), "command", None)
    if command is None or not hasattr(error, "possibilities"):
        return None
    there = sorted({name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)})
    typed = _plain(error.option_name)
    meant = [option for option in there if _plain(option) == typed]
    meant = meant or [option for option in there if typed in _CALLED.get(option, "").split()]
    return f"{error.message}; did you mean {' or '.join(map(_spelt, meant))}?" if meant else None


def _spelt(name: str) -> str:
    return name if name.startswith("-") else f"{name.upper()}, which is given without a name"


def _plain(option: str) -> str:
    return option.lstrip("-").lower().replace("_", "-")
