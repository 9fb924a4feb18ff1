"""Sum-Max as late interaction: one query of 32 tokens against 1,000 documents of 128–300 tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.cases import Case
from crossret_kernels import maxsim_scores

ISAS = torch.ops.crossret.cpu_isas().split()
# Documents are the captions' side of the case, so that their lengths vary.
LATE_INTERACTION = Case(n_images=1, n_captions=1000, regions=32, dim=128, shortest=128, longest=300)


@pytest.mark.parametrize("name", ["product", "torch", *(f"cpu-{isa}" for isa in ISAS)])
def test_late_interaction(benchmark: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    benchmark.group = f"maxsim_scores {LATE_INTERACTION} float32"
    query, documents, lengths = LATE_INTERACTION.features()
    packed = torch.cat([item[:length] for item, length in zip(documents, lengths.tolist(), strict=True)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    if name == "product":
        benchmark(torch.mm, packed, query[0].T)
    else:
        backend, _, isa = name.partition("-")
        if isa:
            monkeypatch.setenv("CROSSRET_CPU_ISA", isa)
        similarities = (packed @ query[0].T).split(lengths.tolist())
        expected = torch.stack([block.amax(0).sum() for block in similarities])[:, None]
        torch.testing.assert_close(maxsim_scores((packed, offsets), query, backend=backend), expected)
        benchmark(maxsim_scores, (packed, offsets), query, backend=backend)
    benchmark.extra_info.update(flops=LATE_INTERACTION.flops(lengths), pairs=LATE_INTERACTION.n_captions)
