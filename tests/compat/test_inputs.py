"""What all functions in other packages' places share: they compile, and refuse by the argument's own name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret.compat import colpali, pylate, sentence_transformers
from tests.compat.oracles import embeddings, some

QUERY_MASK, MASK, OWN_MASK = some(3, 5), some(3, 6, seed=1), some(3, 2, 6, seed=2)
QUERIES = embeddings(3, 5)
DOCUMENTS, OWN = embeddings(3, 6, seed=1) * MASK[..., None], embeddings(3, 2, 6, seed=2) * OWN_MASK[..., None]

# By what they score: all pairs or those in their places, and stacked documents. Each takes queries, documents, and
# after them, but for some, a mask of either.
FLAT: list[Callable[..., Tensor]] = [
    pylate.colbert_scores, pylate.colbert_scores_pairwise, sentence_transformers.maxsim,
    sentence_transformers.maxsim_pairwise, sentence_transformers.mean_maxsim,
    sentence_transformers.mean_maxsim_pairwise, sentence_transformers.colbert_scores_pairwise, colpali.maxsim_inbatch,
    colpali.score_multi_vector,
]  # fmt: skip
STACKED: list[Callable[..., Tensor]] = [
    pylate.colbert_kd_scores, sentence_transformers.colbert_scores, sentence_transformers.colbert_kd_scores,
    colpali.maxsim_kd,
]  # fmt: skip
FUNCTIONS = pytest.mark.parametrize(
    "function", [*FLAT, *STACKED], ids=lambda own: f"{own.__module__[16:]}.{own.__name__}"
)


@FUNCTIONS
def test_compiles_as_one_graph(function: Callable[..., Tensor]) -> None:
    """Without masks, where rows of zeros tell."""
    compiles(function, (QUERIES, OWN if function in STACKED else DOCUMENTS))


@pytest.mark.parametrize("function", [pylate.colbert_scores, sentence_transformers.maxsim_pairwise])
def test_compiles_in_every_layout(function: Callable[..., Tensor]) -> None:
    """Masks that hold numbers, lists, and lists of whose items a mask leaves out rows; of any sizes."""
    documents = DOCUMENTS + 1
    items = [document[: 4 + index] for index, document in enumerate(documents)]
    compiles(
        function,
        (QUERIES, documents, QUERY_MASK.float(), MASK.long()),
        (list(QUERIES), list(DOCUMENTS)),
        (list(QUERIES), items, QUERY_MASK, MASK),
        dynamic=True,
    )


def compiles(function: Callable[..., Any], *layouts: tuple[Any, ...], dynamic: bool | None = None) -> None:
    own = {"device": "cpu"} if function is colpali.score_multi_vector else {}
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="eager")
    for layout in layouts:
        torch.testing.assert_close(compiled(*layout, **own), function(*layout, **own))


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "complex": lambda own: own.to(torch.complex64),
    "sparse": lambda own: own.to_sparse(),
    "meta": lambda own: own.to("meta"),
    "quantised": lambda own: torch.quantize_per_tensor(own, 0.1, 0, torch.qint8),
    "a list of sparse": lambda own: [item.to_sparse() for item in own],
    "a list of integers": lambda own: [[1, 2], [3, 4, 5], [6]],
    "texts": lambda own: ["a", "b", "c"],
    "nothing": lambda own: None,
}


@FUNCTIONS
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_refusals_name_the_argument(function: Callable[..., Tensor], kind: str) -> None:
    own = [QUERIES, OWN, QUERY_MASK, OWN_MASK] if function in STACKED else [QUERIES, DOCUMENTS, QUERY_MASK, MASK]
    names = [name for name in inspect.signature(function).parameters if "_mask" in name]
    names = [*list(inspect.signature(function).parameters)[:2], *names]
    without_masks = kind in ("nothing", "a list of integers")  # no mask, and masks
    for place, name in enumerate(names[:2] if without_masks else names):
        given = [tensor.float() for tensor in own[: len(names)]]
        with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
            function(*given[:place], REFUSED[kind](given[place]), *given[place + 1 :])
