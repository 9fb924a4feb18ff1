"""Implementations side by side on a GPU: our kernels, the per-caption loop, torch.compile of the einsum, peers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Inputs
from benchmarks.gpu.results import FUSED
from benchmarks.loops import maxsim_loop, scan_loop
from crossret_kernels import maxsim_scores, scan_scores

LOOP, COMPILED, CHUNKED = "loop", "einsum, compiled", "torch"
SAMPLED = (LOOP, COMPILED)  # score the first captions where all would take gigabytes or minutes; ratios are per pair
PEERS = {"flash-maxsim": "flash_maxsim", "late-interaction-kernels": "late_interaction_kernels"}  # the module of each

Score = Callable[[Inputs], Tensor]


def captured(inputs: Inputs) -> Inputs:
    """Lengths on the device, too: there a CUDA graph reads them."""
    device = inputs.regions.device
    return replace(inputs, region_lengths=inputs.region_lengths.to(device), word_lengths=inputs.word_lengths.to(device))


def mask_of(values: Tensor, lengths: Tensor) -> Tensor:
    """(items, rows): whether a row is its item's."""
    return (torch.arange(values.size(1)) < lengths[:, None]).to(values.device)


def scan(name: str, options: dict[str, Any]) -> Score:
    """The named implementation of `scan_scores`."""
    if name == LOOP:
        return partial(scan_loop, **options)
    score = _compiled(scan_scores) if name == COMPILED else scan_scores
    backend = name if name in (*FUSED, CHUNKED) else "reference"

    def call(inputs: Inputs) -> Tensor:
        return score(inputs.regions, inputs.words, None, inputs.word_lengths, backend=backend, **options)

    return call


def maxsim(name: str) -> Score:
    """The named implementation of t2i Sum-Max, or a peer.

    Raises:
        ImportError: the peer is not installed.
    """
    if name == LOOP:
        return maxsim_loop
    if name in PEERS:
        return PEER_CALLS[name](import_peer(name))
    score = _compiled(maxsim_scores) if name == COMPILED else maxsim_scores
    backend = name if name in (*FUSED, CHUNKED) else "reference"

    def call(inputs: Inputs) -> Tensor:
        lengths = inputs.region_lengths, inputs.word_lengths
        return score(inputs.regions, inputs.words, *lengths, backend=backend)

    return call


def _compiled(score: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch.compiler.reset()
    return torch.compile(score)


def import_peer(name: str) -> ModuleType:
    """Imports of a peer without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(PEERS[name])


def flash_maxsim(peer: ModuleType) -> Score:
    """Documents padded, with their lengths; the entry that has gradients where they are asked for."""
    made: dict[int, Tensor | None] = {}

    def call(inputs: Inputs) -> Tensor:
        if id(inputs) not in made:
            lengths = inputs.region_lengths.to(inputs.regions.device, torch.int32)
            made[id(inputs)] = None if _full(inputs.regions, inputs.region_lengths) else lengths
        lengths = made[id(inputs)]
        if inputs.regions.requires_grad:
            scores: Tensor = peer.flash_maxsim_batched_train(inputs.words, inputs.regions, doc_lengths=lengths)
        elif len(inputs.words) == 1:
            scores = peer.flash_maxsim(inputs.words[0], inputs.regions, lengths)[None]
        else:
            scores = peer.flash_maxsim_batched(inputs.words, inputs.regions, lengths)
        return scores.T

    return call


def late_interaction_kernels(peer: ModuleType) -> Score:
    """Documents padded, with a mask."""
    made: dict[int, list[Tensor | None]] = {}

    def call(inputs: Inputs) -> Tensor:
        if id(inputs) not in made:
            sides = (inputs.words, inputs.word_lengths), (inputs.regions, inputs.region_lengths)
            made[id(inputs)] = [None if _full(*side) else mask_of(*side) for side in sides]
        scores: Tensor = peer.maxsim(inputs.words, inputs.regions, *made[id(inputs)])
        return scores.T

    return call


def _full(values: Tensor, lengths: Tensor) -> bool:
    """Whether there is no padding: a peer may then do without its mask, which is made once for any inputs."""
    return int(lengths.min()) == values.size(1)


PEER_CALLS = {"flash-maxsim": flash_maxsim, "late-interaction-kernels": late_interaction_kernels}
