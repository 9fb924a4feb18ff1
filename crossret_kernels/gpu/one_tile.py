"""One tile of products by warpgroups on compute capability 9.0, and which of its instructions does not do what the
kernels take it for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from crossret_kernels.operations import define

sizes = define("one_tile_sizes", (), "", made="int[]")
one_tile = define("one_tile_cuda", (), "Tensor(a!) copies, Tensor(b!) sums, Tensor queries, Tensor contexts", made="()")
BOX, CHUNK, STEP = 128, 16, 32  # bytes of a row in a box, of a chunk, and that are multiplied at a time


def wrong_assumptions(device: torch.device) -> Iterator[str]:
    """Differences between the device and what the kernels assume, copies first; none where there are none."""
    n_queries, n_contexts, n_bytes = sizes()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = "TF32" if dtype is torch.float32 else str(dtype).removeprefix("torch.")
        per_step = STEP // dtype.itemsize

        def run_tile(queries: Tensor, contexts: Tensor, dtype: torch.dtype = dtype) -> tuple[Tensor, Tensor]:
            copies = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
            sums = torch.zeros(n_queries, n_contexts, device=device)
            one_tile(copies, sums, queries.to(device, dtype), contexts.to(device, dtype))
            return copies.cpu(), sums.cpu()

        # Copies: small whole numbers, which every dtype holds, in rows that end within a second box.
        dim = BOX // dtype.itemsize + 2 * CHUNK // dtype.itemsize
        draw = torch.Generator().manual_seed(0)
        queries, contexts = (torch.randint(-8, 9, (n, dim), generator=draw).float() for n in (n_queries, n_contexts))
        copies, sums = run_tile(queries, contexts)
        expected = torch.cat([swizzled(side.to(dtype)) for side in (queries[: n_queries // 2], contexts,
                                                                    queries[n_queries // 2 :], contexts)])  # fmt: skip
        if not torch.equal(copies, expected):
            at = int((copies != expected).nonzero()[0])
            yield f"{name}: boxes lie otherwise in shared memory, from byte {at} of {n_bytes} on"
            continue
        if torch.equal(sums, queries @ contexts.T):
            continue
        # Products: which feature of each meets which, and where rows and columns come out.
        numbers = torch.arange(1.0, 1 + max(n_queries, n_contexts)) % 128
        for step in range(BOX // STEP):
            ones = torch.zeros(1, dim)
            ones[0, step * per_step : (step + 1) * per_step] = 1
            _, rows = run_tile(numbers[:n_queries, None] * ones, ones.expand(n_contexts, -1))
            if not torch.equal(rows, per_step * numbers[:n_queries, None].expand(-1, n_contexts)):
                yield f"{name}: rows of queries come out otherwise, step {step} of 32 bytes"
            _, columns = run_tile(ones.expand(n_queries, -1), numbers[:n_contexts, None] * ones)
            if not torch.equal(columns, per_step * numbers[:n_contexts].expand(n_queries, -1)):
                yield f"{name}: rows of contexts come out otherwise, step {step} of 32 bytes"
        yield f"{name}: products of a tile are wrong"


def swizzled(rows: Tensor) -> Tensor:
    """The first box of rows as bytes in shared memory: chunk c of row r at 8 r + (c ^ r % 8)."""
    chunks = rows.contiguous().view(torch.uint8)[:, :BOX].reshape(len(rows), BOX // CHUNK, CHUNK)
    places = torch.arange(BOX // CHUNK) ^ torch.arange(len(rows))[:, None] % 8
    return torch.zeros_like(chunks).scatter_(1, places[..., None].expand_as(chunks), chunks).flatten()
