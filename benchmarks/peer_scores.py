"""Other libraries' Sum-Max on the CPU, each called the fastest way that it documents for ragged documents."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from benchmarks.cases import Inputs


def _import(name: str) -> ModuleType:
    """The module, or a skip that says why not. What a peer warns of while it is imported is no concern of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name} cannot be imported: {error}")


def maxsim_cpu(inputs: Inputs) -> Callable[[], Tensor]:
    """float32 arrays; one query a call, documents of any lengths."""
    peer = _import("maxsim_cpu")
    if inputs.regions.dtype != torch.float32:
        pytest.skip("maxsim-cpu takes float32 alone")
    regions = zip(inputs.regions, inputs.region_lengths.tolist(), strict=True)
    documents = [item[:length].numpy() for item, length in regions]
    queries = [item[:length].numpy() for item, length in zip(inputs.words, inputs.word_lengths.tolist(), strict=True)]
    return lambda: torch.stack(
        [torch.from_numpy(peer.maxsim_scores_variable(query, documents)) for query in queries], 1
    )


def sentence_transformers(inputs: Inputs) -> Callable[[], Tensor]:
    """Padded documents with a mask: over twice as fast there as lists, which it pads at every call."""
    peer = _import("sentence_transformers.util")
    regions_mask, words_mask = _masks(inputs)
    return lambda: peer.maxsim(inputs.words, inputs.regions, words_mask, regions_mask).T


def late_interaction_kernels(inputs: Inputs) -> Callable[[], Tensor]:
    """Its kernels need a GPU; on a CPU its scorer falls back to an einsum."""
    peer = _import("late_interaction_kernels")
    scorer = peer.MaxSimScorer(normalize=False)
    regions_mask, words_mask = _masks(inputs)
    return lambda: scorer(inputs.words, inputs.regions, words_mask, regions_mask).T


def _masks(inputs: Inputs) -> tuple[Tensor, Tensor]:
    sides = (inputs.regions, inputs.region_lengths), (inputs.words, inputs.word_lengths)
    regions_mask, words_mask = (torch.arange(values.size(1)) < lengths[:, None] for values, lengths in sides)
    return regions_mask, words_mask


PEERS = {
    "maxsim-cpu": maxsim_cpu,
    "sentence-transformers": sentence_transformers,
    "late-interaction-kernels": late_interaction_kernels,
}
