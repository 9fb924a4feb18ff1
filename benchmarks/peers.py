"""Late-interaction packages' training and reranking beside themselves on crossret: time, memory, distance from float64.

    python -m benchmarks.peers OUTPUT.json [--quick]

In an environment that has one of the packages; `make peers-bench` runs it in all and keeps what they wrote.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.memory import peak_mebibytes
from benchmarks.torchvision import let_torchvision_import
from crossret.compat import colpali, pylate, sentence_transformers
from crossret.files.json import write_json
from crossret.machine import describe_machine

TRAINING, RERANKING = "training step", "reranking"
THREADS = 2
ROUNDS = 7


@dataclass(frozen=True)
class Batch:
    """Unit vectors: queries (n, Q, D), documents (m, L, D) with zeros where their mask (m, L) is False."""

    queries: Tensor
    documents: Tensor
    mask: Tensor
    listed: list[Tensor]  # documents without their padding

    @property
    def shape(self) -> str:
        tokens = self.mask.sum(1)
        least, most = int(tokens.min()), int(tokens.max())
        (n, rows, dim), m = self.queries.shape, len(self.documents)
        return f"{n} × {rows} by {m:,} × {most if least == most else f'{least}–{most}'}, D = {dim}"

    def double(self) -> Batch:
        return replace(self, queries=self.queries.double(), documents=self.documents.double())


@dataclass(frozen=True)
class Figures:
    milliseconds: float  # median
    mebibytes: float  # peak beyond inputs and results
    scores: float  # largest distance from float64
    gradients: float | None  # both sides': the distance's norm by theirs in float64


@dataclass(frozen=True)
class Measurement:
    package: str
    version: str
    task: str
    shape: str
    dtype: str
    theirs: Figures
    ours: Figures


Score = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Peer:
    """A package: how it scores a training batch and reranks, and what puts crossret in its place."""

    package: str
    distribution: str
    compat: Any
    training: Callable[[], Score]
    reranking: Callable[[], Score]
    batch: tuple[int, int, tuple[int, int]]  # queries and as many documents, and tokens of these

    @contextmanager
    def on_crossret(self) -> Iterator[None]:
        self.compat.patch()
        try:
            yield
        finally:
            self.compat.unpatch()


def pylate_training() -> Score:
    score = importlib.import_module("pylate.scores").ColBERTScores()
    return lambda own: score(own.queries, own.documents[:, None], documents_mask=own.mask[:, None].float())


def pylate_reranking() -> Score:
    rank = importlib.import_module("pylate.rank")

    def rerank(own: Batch) -> Tensor:
        names = list(range(len(own.documents)))
        (results,) = rank.rerank([names], [own.queries[0]], [own.listed])
        return torch.tensor([[result["score"] for result in sorted(results, key=lambda result: result["id"])]])

    return rerank


def sentence_transformers_training() -> Score:
    scoring = importlib.import_module("sentence_transformers.multi_vector_encoder.scoring")
    return lambda own: scoring.colbert_scores(own.queries, own.documents[:, None], None, own.mask[:, None])


def sentence_transformers_reranking() -> Score:
    util = importlib.import_module("sentence_transformers.util")
    return lambda own: util.maxsim(own.queries, own.listed)


def colpali_training() -> Score:
    package = importlib.import_module("colpali_engine.utils.maxsim")
    return lambda own: package.maxsim_inbatch(own.queries, own.documents)


def colpali_reranking() -> Score:
    processor = importlib.import_module("colpali_engine.utils.processing_utils").BaseVisualRetrieverProcessor
    return lambda own: processor.score_multi_vector(own.queries, own.listed, device="cpu")


TEXTS, PAGES = (128, 300), (1030, 1030)  # tokens
RERANKED = {TEXTS: 1000, PAGES: 250}
PEERS = (
    Peer("pylate", "pylate", pylate, pylate_training, pylate_reranking, (64, 32, TEXTS)),
    Peer(
        "sentence_transformers", "sentence-transformers", sentence_transformers,
        sentence_transformers_training, sentence_transformers_reranking, (64, 32, TEXTS),
    ),
    Peer("colpali_engine", "colpali-engine", colpali, colpali_training, colpali_reranking, (32, 24, PAGES)),
)  # fmt: skip


def make_batch(queries: int, rows: int, documents: int, tokens: tuple[int, int], dtype: torch.dtype) -> Batch:
    """Equal vectors on every call; scores are as close to each other as untrained models', and no loss is saturated."""
    generator = torch.Generator().manual_seed(0)
    own = F.normalize(torch.randn(queries, rows, 128, generator=generator), dim=-1)
    others = F.normalize(torch.randn(documents, tokens[1], 128, generator=generator), dim=-1)
    lengths = torch.randint(tokens[0], tokens[1] + 1, (documents,), generator=generator)
    mask = torch.arange(tokens[1]) < lengths[:, None]
    padded = (others * mask[..., None]).to(dtype)
    return Batch(own.to(dtype), padded, mask, [item[kept] for item, kept in zip(padded, mask, strict=True)])


def exact(own: Batch) -> Tensor:
    """Scores in float64, a query at a time."""
    rows = []
    for query in own.queries.double():
        similarities = torch.einsum("id,bjd->bij", query, own.documents.double())
        rows.append(similarities.masked_fill(~own.mask[:, None], -torch.inf).amax(2).sum(1))
    return torch.stack(rows)


def step(score: Score, own: Batch) -> list[Tensor]:
    """Scores, and the gradients of both sides of their cross entropy, as contrastive losses take it."""
    leaves = [own.queries.detach().requires_grad_(), own.documents.detach().requires_grad_()]
    scores = score(replace(own, queries=leaves[0], documents=leaves[1]))
    loss = F.cross_entropy(
        scores.double() if scores.dtype == torch.float64 else scores.float(), torch.arange(len(scores))
    )
    return [scores.detach(), *torch.autograd.grad(loss, leaves)]


def measure(peer: Peer, task: str, dtype: torch.dtype, quick: bool) -> Measurement:
    """The package as it is and patched, in turns, after both were compared with float64."""
    n, rows, tokens = peer.batch
    training = task == TRAINING
    documents = n if training else RERANKED[tokens]
    if quick:
        n, documents, tokens = 4, 4, (40, 50)
    own = make_batch(n if training else 1, rows, documents, tokens, dtype)
    score = peer.training() if training else peer.reranking()

    def call() -> list[Tensor]:
        return step(score, own) if training else [score(own)]

    expected = step(exact, own.double()) if training else [exact(own)]
    contexts: dict[str, Callable[[], AbstractContextManager[None]]] = {"theirs": nullcontext, "ours": peer.on_crossret}
    seconds: dict[str, list[float]] = {side: [] for side in contexts}
    found: dict[str, tuple[float, list[Tensor]]] = {}
    for side, context in contexts.items():
        with context():
            call()
            found[side] = peak_mebibytes(call)
    for _ in range(1 if quick else ROUNDS):
        for side, context in contexts.items():
            with context():
                start = time.perf_counter()
                call()
                seconds[side].append(time.perf_counter() - start)

    def figures(side: str) -> Figures:
        mebibytes, (scores, *gradients) = found[side]
        distance = (scores.double() - expected[0]).abs().max().item()
        relative = None
        if training:
            exactly = torch.cat([gradient.flatten() for gradient in expected[1:]])
            difference = torch.cat([gradient.double().flatten() for gradient in gradients]) - exactly
            relative = (difference.norm() / exactly.norm()).item()
        return Figures(statistics.median(seconds[side]) * 1000, mebibytes, distance, relative)

    name = str(dtype).removeprefix("torch.")
    version = metadata.version(peer.distribution)
    return Measurement(peer.distribution, version, task, own.shape, name, figures("theirs"), figures("ours"))


def serves(peer: Peer) -> bool:
    """Whether the package is here, in the version that is stood in for: PyLate brings another's older one along."""
    try:
        with peer.on_crossret():
            return True
    except ImportError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help="small, once: to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    let_torchvision_import()
    measurements = []
    for peer in filter(serves, PEERS):
        for task in (TRAINING, RERANKING):
            for dtype in (torch.float32, torch.bfloat16):
                measurements.append(measure(peer, task, dtype, arguments.quick))
                print(measurements[-1], flush=True)
    if not measurements:
        print("peers: none of the packages is installed here; `make peers-bench` installs them", file=sys.stderr)
        return 2
    contents = {"machine": describe_machine(), "measurements": [asdict(own) for own in measurements]}
    write_json(arguments.output, contents)
    return 0


if __name__ == "__main__":
    sys.exit(main())
