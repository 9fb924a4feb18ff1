"""Backend "torch" of attention pooling: one product an item, over chunks of items of bounded size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.chunked import WORKSPACE_BYTES, recomputed, split
from crossret_kernels.padded.forms import pad_items


def attention_pool_chunked(values: Ragged, logits: Ragged) -> tuple[Tensor, Tensor]:
    """Pooled (n, r, D) and weights (n, r, L).

    A chunk's padded or widened values are made again in the backward pass; values that need neither are never copied.
    """
    dtype = torch.promote_types(values.values.dtype, torch.float32)
    row_bytes = dtype.itemsize * (values.values.size(-1) + 2 * logits.values.size(-1))
    rows = max(1, WORKSPACE_BYTES // row_bytes)
    copies = not values.by_width or values.mask is not None or values.values.dtype != dtype
    parts = []
    # A graph for all sizes knows no number of chunks.
    chunks = [(values, logits)] if is_compiling() else zip(split(values, rows), split(logits, rows), strict=True)
    for x, a in chunks:

        def pool(x_rows: Tensor, a_rows: Tensor, x: Ragged = x, a: Ragged = a) -> tuple[Tensor, Tensor]:
            (padded, mask), (heads, _) = pad_items(x.with_values(x_rows)), pad_items(a.with_values(a_rows))
            weights = torch.softmax(heads.to(dtype).mT.masked_fill(~mask[:, None], -torch.inf), -1)
            return weights @ padded.to(dtype), weights

        parts.append(recomputed(pool, x.values, a.values) if copies else pool(x.values, a.values))
    if not parts:
        n, r, dim = len(values), logits.values.size(-1), values.values.size(-1)
        # Results of no items, which reach values and logits in the backward pass as any others do.
        nothing = values.values.to(dtype).sum() + logits.values.to(dtype).sum()
        return nothing.expand(n, r, dim), nothing.expand(n, r, values.width)
    return torch.cat([part[0] for part in parts]), torch.cat(
        [F.pad(part[1], (0, values.width - part[1].size(2))) for part in parts]
    )
