"""`heterogeneous_attention_weights`: what HAN's local matching of listed pairs looks at, after the layers."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from crossret_kernels.cross_attention.scan_attention import ScanAttention
from crossret_kernels.heterogeneous_attention.op import attend
from crossret_kernels.heterogeneous_attention.options import (
    HeterogeneousFields,
    HeterogeneousLayer,
    HeterogeneousOptions,
)
from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.options import checked
from crossret_kernels.inputs.tensors import Array


def heterogeneous_attention_weights(
    regions: Features,
    words: Features,
    region_lengths: Lengths = None,
    word_lengths: Lengths = None,
    *,
    layers: Sequence[HeterogeneousLayer],
    options: HeterogeneousOptions | None = None,
    region_mask: Array | None = None,
    word_mask: Array | None = None,
    empty_score: float | None = None,
    pairs: Array | None = None,
    candidates: Array | None = None,
    query: str | None = None,
    backend: str | None = None,
    **fields: Unpack[HeterogeneousFields],
) -> ScanAttention:
    """The attention by which `heterogeneous_scores` with matching="local" scores pairs, as `scan_attention` returns it.

    Arguments and errors are those of `heterogeneous_scores`; the backend is "cpu", "torch" or "reference". One of
    `pairs` and `candidates` is needed, as the weights of all pairs would fill the memory.
    """
    if pairs is None and candidates is None:
        raise ValueError(
            "heterogeneous_attention_weights takes pairs or candidates: the weights of all pairs are not kept"
        )
    options = checked(HeterogeneousOptions, options, fields)
    if options.matching != "local":
        raise ValueError(f"heterogeneous_attention_weights has matching 'local' alone, not {options.matching!r}")
    given = (regions, words, region_lengths, word_lengths, region_mask, word_mask, empty_score)
    return ScanAttention(*attend(given, layers, options, (pairs, candidates, query), backend, weights=True))
