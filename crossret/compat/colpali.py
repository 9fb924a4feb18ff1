"""colpali-engine's scores on crossret's kernels: what its losses and processors call.

Arguments and results are those of colpali-engine 0.3.18, except on purpose:

| | colpali-engine | here |
|---|---|---|
| rows of zeros of documents, its padding | tokens, which win over negative similarities | padding, which never wins |
| a list's scores | depend on what pads its batch | of each pair alone |
| scores of bfloat16 and float16 | rounded to that (`score_multi_vector`: then float32) | float32, summed in float32 |
| `batch_size` | what is padded and built at once | what moves to `device` at once: nothing is built |
| COLPALI_SCORES_BACKEND | auto, torch or lik | CROSSRET_BACKEND |

A document without tokens scores 0, as there. The losses' smooth maximum is no MaxSim and stays their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crossret.compat.patching import Patch
from crossret.compat.sides import Embeddings, Side, as_side, check_dimensions, parts, score
from crossret_kernels.late_interaction import maxsim

__all__ = ["maxsim_inbatch", "maxsim_kd", "patch", "score_multi_vector", "unpatch"]


def score_multi_vector(
    qs: Embeddings, ps: Embeddings, batch_size: int = 128, device: str | torch.device | None = None
) -> Tensor:
    """MaxSim of every query with every passage, as processors' static method of that name.

    Args:
        qs: (n_queries, Q, D), or a list of (Q_i, D).
        ps: (n_passages, L, D), or a list of (L_i, D); rows of zeros are padding.
        batch_size: passages that are moved to the device at once, where they lie elsewhere.
        device: where to score; None: an accelerator where there is one, else the CPU.

    Returns:
        (n_queries, n_passages), float32, on the CPU.

    Raises:
        ValueError: no queries, no passages, or as `crossret_kernels.late_interaction.maxsim`.
        TypeError, UnsupportedByBackend: as that.
    """
    queries, passages = _queries(qs, "qs"), _documents(ps, "ps")
    if not len(queries):
        raise ValueError("No queries provided")
    if not len(passages):
        raise ValueError("No passages provided")
    there = torch.device(_accelerator() if device is None else device)
    check_dimensions(passages, "ps", "(n_passages, L, D)")
    queries = queries.part(0, len(queries), there)
    runs = parts(len(passages), len(passages) if passages.device == there else batch_size)
    scores = [score(maxsim, queries, passages.part(*run, there)).cpu() for run in runs]
    return (scores[0] if len(scores) == 1 else torch.cat(scores, 1)).float()


def maxsim_inbatch(query: Tensor, doc: Tensor) -> Tensor:
    """MaxSim of every query with every document, of the in-batch losses.

    Args:
        query: (n_queries, Q, D).
        doc: (n_documents, L, D); rows of zeros are padding.

    Returns:
        (n_queries, n_documents), float32, float64 for float64, on the embeddings' device.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `crossret_kernels.late_interaction.maxsim`.
    """
    queries, documents = _queries(query, "query"), _documents(doc, "doc")
    check_dimensions(documents, "doc", "(n_documents, L, D)")
    return score(maxsim, queries, documents)


def maxsim_kd(query: Tensor, doc: Tensor) -> Tensor:
    """MaxSim of every query with documents of its own, of the losses with negatives.

    Args:
        query: (n_queries, Q, D).
        doc: (n_queries, N, L, D); rows of zeros are padding.

    Returns:
        (n_queries, N), as the scores of `maxsim_inbatch`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `maxsim_inbatch`.
    """
    queries, documents = _queries(query, "query"), _documents(doc, "doc")
    check_dimensions(documents, "doc", "(n_queries, N, L, D)")
    return score(maxsim, queries, documents)


def _queries(embeddings: Embeddings, name: str) -> Side:
    """Zeros need no mask here: their similarities are 0, whatever the document."""
    return as_side(embeddings, None, (name, ""), zeros_of_padded=False)


def _documents(embeddings: Embeddings, name: str) -> Side:
    return as_side(embeddings, None, (name, ""), zeros_of_padded=True, zeros_of_listed=True)


def _accelerator() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


_PATCH = Patch(
    "colpali_engine",
    "colpali-engine>=0.3.18",
    "pip install 'crossret[colpali]'",
    {
        "colpali_engine.utils.maxsim:maxsim_inbatch": maxsim_inbatch,
        "colpali_engine.utils.maxsim:maxsim_kd": maxsim_kd,
        "colpali_engine.utils.processing_utils:BaseVisualRetrieverProcessor.score_multi_vector": staticmethod(
            score_multi_vector
        ),
    },
)
patch, unpatch = _PATCH.patch, _PATCH.unpatch
