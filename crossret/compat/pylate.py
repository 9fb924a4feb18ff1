"""PyLate's scores on crossret's kernels: what `Contrastive`, `Distillation`, evaluators and `rank.rerank` call.

Arguments and results are those of PyLate 1.6, except on purpose:

| | PyLate | here |
|---|---|---|
| a masked document token | has similarity 0, which wins over negative ones | never wins |
| documents' rows of zeros, no mask (`rank.rerank`) | tokens, which win over negative similarities | padding |
| scores of bfloat16 and float16 | rounded to that | float32, summed in float32 |
| masks of other numbers than 0 and 1 | weights | an error |
| lists of several lengths | an error, but for pairs | taken |
| another number of queries than documents in pairs | the longer list is cut | an error |
| `backend="auto"`, and None | PYLATE_SCORES_BACKEND tells; the fastest that serves | CROSSRET_BACKEND tells; the same |
| `backend="flash"`, `"lik"` | those packages' kernels; an error without them or a GPU | as "auto", on the CPU, too |
| `backend="torch"` | all similarities at once | PyTorch operations in bounded memory |
| another `backend` | an error | crossret's names: `maxsim_scores` |
| `colbert_scores` of stacked documents | by `ColBERTScores` alone | as `ColBERTScores` |

A document without tokens scores 0, as there. Nothing is built of the size of queries × documents × tokens.

`pip install 'crossret[pylate]'` brings torch 2.11: PyLate wants fast-plaid, every build of which is for one torch, and
none for a later one. Beside a later torch PyLate does without, but for its PLAID index:

    pip install --no-deps pylate fastkmeans
    pip install sentence-transformers==5.3.0 'transformers<=5.3.0' accelerate datasets pandas ujson==5.12.0
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from crossret.compat.patching import Patch
from crossret.compat.sides import Embeddings, Mask, Side, as_embeddings, as_side, score, together
from crossret_kernels.late_interaction import maxsim, maxsim_pairs

# crossret's own kernels stand in for those that PyLate calls.
_BACKENDS = {"auto": None, "flash": None, "lik": None, "torch": "torch"}

__all__ = ["colbert_kd_scores", "colbert_scores", "colbert_scores_pairwise", "patch", "unpatch"]


def colbert_scores(
    queries_embeddings: Embeddings,
    documents_embeddings: Embeddings,
    queries_mask: Mask = None,
    documents_mask: Mask = None,
    backend: str | None = None,
) -> Tensor:
    """MaxSim of every query with every document; the `score_metric` of `Contrastive` and `CachedContrastive`.

    Args:
        queries_embeddings: (n_queries, Q, D), or a list of (Q_i, D); tensors or arrays of floating-point numbers.
        documents_embeddings: (n_documents, L, D), or a list; or stacked, (n, N, L, D), N documents of each of n items,
            of which there may be a list, too.
        queries_mask: (n_queries, Q), bool or 0 and 1; None: all rows are tokens.
        documents_mask: (n_documents, L) or (n, N, L); None: all rows but those of zeros are tokens.
        backend: PyLate's "auto", "torch", "flash" or "lik", in any case (above), or as in
            `crossret_kernels.maxsim_scores`.

    Returns:
        (n_queries, n_documents), of stacked documents (n_queries, n · N) with document k of item j in column j · N + k.
        float32, float64 for float64, on the embeddings' device.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `crossret_kernels.late_interaction.maxsim`, and for masks.
    """
    queries, documents = _sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    return score(partial(maxsim, backend=_backend(backend)), queries, documents.stacked())


def colbert_kd_scores(
    queries_embeddings: Embeddings,
    documents_embeddings: Embeddings,
    queries_mask: Mask = None,
    documents_mask: Mask = None,
    backend: str | None = None,
) -> Tensor:
    """MaxSim of every query with documents of its own, the `score_metric` of `Distillation`.

    Args:
        documents_embeddings: (n_queries, N, L, D), or a list of (N, L, D).
        documents_mask: (n_queries, N, L).
        queries_embeddings, queries_mask, backend: as in `colbert_scores`.

    Returns:
        (n_queries, N), in the dtype and on the device of `colbert_scores`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `colbert_scores`.
    """
    queries, documents = _sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    if isinstance(documents.features, list) or documents.features.dim() != 4:
        raise ValueError("documents_embeddings must be (n_queries, N, L, D), N documents for every query")
    return score(partial(maxsim, backend=_backend(backend)), queries, documents)


def colbert_scores_pairwise(
    queries_embeddings: Embeddings, documents_embeddings: Embeddings, backend: str | None = None
) -> Tensor:
    """MaxSim of every query with the document in its place.

    Args:
        queries_embeddings, documents_embeddings: (n, Q, D) and (n, L, D), or lists of (Q_i, D) and (L_i, D).
        backend: as in `colbert_scores`.

    Returns:
        (n,), in the dtype and on the device of `colbert_scores`.

    Raises:
        ValueError, TypeError, UnsupportedByBackend: as `colbert_scores`; another number of queries than documents.
    """
    sides = _sides(queries_embeddings, documents_embeddings, None, None)
    return score(partial(maxsim_pairs, backend=_backend(backend)), *sides)


def _backend(name: str | None) -> str | None:
    """crossret's name of a backend, for PyLate's."""
    if not isinstance(name, str):
        return name
    return _BACKENDS.get(name.lower(), name)


def _sides(queries: Embeddings, documents: Embeddings, query_mask: Mask, document_mask: Mask) -> tuple[Side, Side]:
    """Both. A query's zeros need no mask: their similarities are 0, whatever the document."""
    stacked = isinstance(documents, (list, tuple)) and len(documents) > 0
    if stacked and as_embeddings(documents[0], "documents_embeddings[0]").dim() == 3:
        documents = together(documents, "documents_embeddings")
    return (
        as_side(queries, query_mask, ("queries_embeddings", "queries_mask"), zeros_of_padded=False),
        as_side(
            documents, document_mask, ("documents_embeddings", "documents_mask"),
            zeros_of_padded=True, zeros_of_listed=True,
        ),
    )  # fmt: skip


_PATCH = Patch(
    "pylate",
    "pylate>=1.6",
    "pip install 'crossret[pylate]' brings it with torch 2.11, which its fast-plaid wants; beside a later torch: pip "
    "install --no-deps pylate fastkmeans, and what else it needs, as listed in crossret.compat.pylate",
    {
        "pylate.scores.colbert:colbert_scores": colbert_scores,
        "pylate.scores.colbert:colbert_kd_scores": colbert_kd_scores,
        "pylate.scores.colbert:colbert_scores_pairwise": colbert_scores_pairwise,
    },
)
patch, unpatch = _PATCH.patch, _PATCH.unpatch
